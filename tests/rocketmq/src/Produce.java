import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Produces a varied, seeded set of messages through the official client and returns when all of them are readable,
 * delayed and transactional ones included. Arguments: SEED PREFIX SCALE. The name server comes from the system
 * property rocketmq.namesrv.addr, which the client reads by itself.
 *
 * <p>Topics, each with PREFIX in front: Orders (several queues, keys, tags beyond ASCII, an empty tag, user
 * properties), Big (bodies that the client compresses, and bodies that cannot be compressed), Batch (client batches),
 * Keys (two queues, doubled blanks between keys), Delay (delay levels 1 and 2), Tx (committed and rolled back).
 */
public class Produce {
  private static final String[] TAGS = {"TagA", "TagB", "\u8ba2\u5355", "emoji\uD83D\uDE00", "polygenelubricants", ""};
  private static final int DELAYED = 6;
  private static final int ATTEMPTS = 60;

  private interface Sending {
    void send() throws Exception;
  }

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
    String seed = args[0];
    Random random = new Random(Long.parseLong(seed));
    String prefix = args[1];
    int scale = Integer.parseInt(args[2]);
    DefaultMQPullConsumer watcher = Client.started("CG_" + prefix);
    Set<String> delayed = new TreeSet<>();

    DefaultMQProducer producer = new DefaultMQProducer("PG_" + prefix);
    producer.setInstanceName("produce");
    producer.setMaxMessageSize(4 * 1024 * 1024);
    producer.setSendMsgTimeout(10000);
    producer.start();
    orders(producer, random, prefix + "Orders", 400 * scale);
    big(producer, random, prefix + "Big", scale);
    for (int i = 0; i < 10 * scale; i++) {
      List<Message> batch = new ArrayList<>();
      for (int j = 0; j < 7; j++) {
        batch.add(new Message(prefix + "Batch", "B", "batch-" + i + "-" + j, ("batch body " + i + "/" + j).getBytes(StandardCharsets.UTF_8)));
      }
      retried(() -> producer.send(batch));
    }
    for (int i = 0; i < 60 * scale; i++) {
      Message message = new Message(prefix + "Keys", "K", ("b" + i).getBytes(StandardCharsets.UTF_8));
      message.setKeys("k" + (i % 10) + "  dup dup k-" + i);
      int queue = i % 2;
      retried(() -> producer.send(message, (queues, m, n) -> queues.get((Integer) n), queue));
    }
    for (int i = 0; i < DELAYED; i++) {
      String key = "delay-" + seed + "-" + i;
      Message message = new Message(prefix + "Delay", "D", key, ("later " + i).getBytes(StandardCharsets.UTF_8));
      delayed.add(key);
      message.setDelayTimeLevel(1 + i % 2);
      retried(() -> producer.send(message));
    }
    producer.shutdown();
    Set<String> committed = transactions(prefix, seed, 15 * scale);
    await(watcher, prefix + "Delay", delayed);
    await(watcher, prefix + "Tx", committed);
    watcher.shutdown();
    System.out.println("done");
  }

  private static void orders(DefaultMQProducer producer, Random random, String topic, int count) throws Exception {
    for (int i = 0; i < count; i++) {
      byte[] body = new byte[1 + random.nextInt(600)];
      random.nextBytes(body);
      Message message = new Message(topic, TAGS[i % TAGS.length], "order-" + i + " user-" + (i % 17), body);
      message.setFlag(i);
      message.putUserProperty("seq", "" + i);
      if (i % 5 == 0) {
        message.putUserProperty("\u8bf4\u660e", "\u503c" + i);
      }
      retried(() -> producer.send(message));
    }
  }

  private static void big(DefaultMQProducer producer, Random random, String topic, int scale) throws Exception {
    for (int i = 0; i < 20 * scale; i++) {
      StringBuilder text = new StringBuilder();
      int length = 6000 + random.nextInt(20000);
      while (text.length() < length) {
        text.append("line ").append(i).append(" \u6570\u636e ");
      }
      byte[] body = text.toString().getBytes(StandardCharsets.UTF_8);
      retried(() -> producer.send(new Message(topic, "Z", "big", body)));
    }
    for (int i = 0; i < 4 * scale; i++) {
      byte[] body = new byte[70000 + random.nextInt(60000)];
      random.nextBytes(body);
      retried(() -> producer.send(new Message(topic, "R", "random", body)));
    }
  }

  /** Every third one is rolled back. Returns the keys of those that were committed. */
  private static Set<String> transactions(String prefix, String seed, int count) throws Exception {
    Set<String> committed = new TreeSet<>();
    TransactionMQProducer producer = new TransactionMQProducer("TPG_" + prefix);
    producer.setInstanceName("transact");
    producer.setTransactionListener(new TransactionListener() {
      @Override
      public LocalTransactionState executeLocalTransaction(Message message, Object number) {
        return (Integer) number % 3 == 0 ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.COMMIT_MESSAGE;
      }

      @Override
      public LocalTransactionState checkLocalTransaction(MessageExt message) {
        return LocalTransactionState.COMMIT_MESSAGE;
      }
    });
    producer.start();
    for (int i = 0; i < count; i++) {
      int number = i;
      String key = "tx-" + seed + "-" + i;
      Message message = new Message(prefix + "Tx", "T", key, ("tx " + i).getBytes(StandardCharsets.UTF_8));
      if (number % 3 != 0) {
        committed.add(key);
      }
      retried(() -> producer.sendMessageInTransaction(message, number));
    }
    producer.shutdown();
    return committed;
  }

  /** A topic's first sends may fail until its route is known everywhere. */
  private static void retried(Sending sending) throws Exception {
    for (int attempt = 1; ; attempt++) {
      try {
        sending.send();
        return;
      } catch (Exception e) {
        if (attempt == ATTEMPTS) {
          throw e;
        }
        Thread.sleep(300);
      }
    }
  }

  /** Returns once messages with all these keys can be read. Counting would not do: a crash delivers some twice. */
  private static void await(DefaultMQPullConsumer consumer, String topic, Set<String> keys) throws Exception {
    Set<String> missing = new TreeSet<>(keys);
    for (int attempt = 0; attempt < 2 * ATTEMPTS; attempt++) {
      for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
        PullResult result;
        for (long offset = 0; offset < consumer.maxOffset(queue); offset = result.getNextBeginOffset()) {
          result = consumer.pull(queue, "*", offset, 32, 10000);
          if (result.getPullStatus() != PullStatus.FOUND) {
            break;
          }
          result.getMsgFoundList().forEach(message -> missing.remove(message.getKeys()));
        }
      }
      if (missing.isEmpty()) {
        return;
      }
      Thread.sleep(250);
    }
    throw new IllegalStateException(topic + " lacks " + missing);
  }
}
