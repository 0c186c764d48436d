import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Reads every queue of the given topics through a running broker with the official pull client and writes what it got:
 * OUT_DIR/messages.jsonl, and with "all" also pulls.jsonl and offset_by_time.jsonl. Arguments: OUT_DIR messages|all
 * TOPIC... The name server comes from the system property rocketmq.namesrv.addr, which the client reads by itself.
 *
 * <p>physical_offset is bytes 28..35 of the record that the broker sent: the tier's offset where the tier served the
 * read, the local commit log's where that did. Properties that the broker or client adds on the way are left out. The
 * client clears bit 0x1 (compressed) of sys_flag when it decompresses.
 */
public class Expect {
  private static final int ATTEMPTS = 40;
  private static final String[] SUBSCRIPTIONS = {"TagA", "TagB || \u8ba2\u5355", "polygenelubricants", "NoSuchTag"};
  private static DefaultMQPullConsumer client;
  private static MessageDigest digest;

  public static void main(String[] args) {
    try {
      run(args);
      System.exit(0);
    } catch (Throwable e) { // the client's threads would keep the process alive
      e.printStackTrace();
      System.exit(1);
    }
  }

  private static void run(String[] args) throws Exception {
    digest = MessageDigest.getInstance("SHA-256");
    client = Client.started("CG_expect");
    Path out = Paths.get(args[0]);
    boolean all = args[1].equals("all");
    try (PrintWriter messages = writer(out.resolve("messages.jsonl"));
        PrintWriter pulls = all ? writer(out.resolve("pulls.jsonl")) : null;
        PrintWriter times = all ? writer(out.resolve("offset_by_time.jsonl")) : null) {
      for (int i = 2; i < args.length; i++) {
        List<MessageQueue> queues = new ArrayList<>(client.fetchSubscribeMessageQueues(args[i]));
        Collections.sort(queues);
        for (MessageQueue queue : queues) {
          TreeSet<Long> timestamps = read(queue, messages);
          if (all) {
            pull(queue, pulls);
            search(queue, timestamps, times);
          }
        }
      }
    }
    client.shutdown();
  }

  private static PrintWriter writer(Path path) throws Exception {
    return new PrintWriter(Files.newBufferedWriter(path, StandardCharsets.UTF_8));
  }

  private static TreeSet<Long> read(MessageQueue queue, PrintWriter out) throws Exception {
    TreeSet<Long> timestamps = new TreeSet<>();
    long offset = client.minOffset(queue);
    long end = client.maxOffset(queue);
    int attempts = 0;
    while (offset < end) {
      PullResult result = client.pull(queue, "*", offset, 32, 10000);
      if (result.getPullStatus() == PullStatus.FOUND) {
        for (MessageExt message : result.getMsgFoundList()) {
          out.println(json(queue, message));
          timestamps.add(message.getStoreTimestamp());
        }
      }
      if (result.getNextBeginOffset() > offset) {
        offset = result.getNextBeginOffset();
        attempts = 0;
      } else if (++attempts == ATTEMPTS) {
        throw new IllegalStateException("no way past " + queue + " " + offset + ": " + result);
      } else {
        Thread.sleep(250);
      }
    }
    return timestamps;
  }

  private static String json(MessageQueue queue, MessageExt message) {
    Map<String, String> properties = new TreeMap<>(message.getProperties());
    properties.remove("MIN_OFFSET");
    properties.remove("MAX_OFFSET");
    String pairs = properties.entrySet().stream()
        .map(e -> quoted(e.getKey()) + ":" + quoted(e.getValue())).collect(Collectors.joining(","));
    byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
    StringBuilder sha = new StringBuilder();
    for (byte b : digest.digest(body)) {
      sha.append(String.format("%02x", b));
    }
    return String.format(
        "{\"topic\":%s,\"queue_id\":%d,\"queue_offset\":%d,\"store_timestamp\":%d,\"born_timestamp\":%d,\"born_host\":%s,"
            + "\"store_host\":%s,\"flag\":%d,\"sys_flag\":%d,\"store_size\":%d,\"physical_offset\":%d,\"body_crc\":%d,"
            + "\"body_sha256\":\"%s\",\"body_length\":%d,\"properties\":{%s}}",
        quoted(queue.getTopic()), queue.getQueueId(), message.getQueueOffset(), message.getStoreTimestamp(),
        message.getBornTimestamp(), host(message.getBornHost()), host(message.getStoreHost()), message.getFlag(),
        message.getSysFlag(), message.getStoreSize(), message.getCommitLogOffset(), message.getBodyCRC(), sha,
        body.length, pairs);
  }

  private static String host(Object address) {
    String text = address.toString();
    return quoted(text.substring(text.lastIndexOf('/') + 1));
  }

  private static void pull(MessageQueue queue, PrintWriter out) throws Exception {
    long min = client.minOffset(queue);
    long max = client.maxOffset(queue);
    for (String subscription : SUBSCRIPTIONS) {
      for (long offset : new long[] {0, min, min + (max - min) / 3, max - 1, max, max + 7}) {
        for (int count : new int[] {1, 7, 32}) {
          long from = Math.max(0, offset);
          PullResult result = client.pull(queue, subscription, from, count, 10000);
          List<MessageExt> found = result.getMsgFoundList() == null ? List.of() : result.getMsgFoundList();
          String offsets = found.stream().map(m -> "" + m.getQueueOffset()).collect(Collectors.joining(","));
          out.printf(
              "{\"topic\":%s,\"queue_id\":%d,\"subscription\":%s,\"offset\":%d,\"max\":%d,\"status\":\"%s\",\"next\":%d,"
                  + "\"min_offset\":%d,\"max_offset\":%d,\"offsets\":[%s]}%n",
              quoted(queue.getTopic()), queue.getQueueId(), quoted(subscription), from, count, result.getPullStatus(),
              result.getNextBeginOffset(), result.getMinOffset(), result.getMaxOffset(), offsets);
        }
      }
    }
  }

  private static void search(MessageQueue queue, TreeSet<Long> timestamps, PrintWriter out) throws Exception {
    TreeSet<Long> probes = new TreeSet<>();
    int i = 0;
    for (long timestamp : timestamps) {
      if (i++ % 23 == 0) {
        probes.addAll(List.of(timestamp - 1, timestamp, timestamp + 1));
      }
    }
    if (!timestamps.isEmpty()) {
      probes.addAll(List.of(timestamps.first() - 1000, timestamps.last() + 1000));
    }
    for (long probe : probes) {
      out.printf("{\"topic\":%s,\"queue_id\":%d,\"timestamp\":%d,\"offset\":%d}%n",
          quoted(queue.getTopic()), queue.getQueueId(), probe, client.searchOffset(queue, probe));
    }
  }

  private static String quoted(String text) {
    StringBuilder out = new StringBuilder("\"");
    for (char c : text.toCharArray()) {
      if (c == '"' || c == '\\') {
        out.append('\\').append(c);
      } else if (c < 32 || c > 126) {
        out.append(String.format("\\u%04x", (int) c));
      } else {
        out.append(c);
      }
    }
    return out.append('"').toString();
  }
}
