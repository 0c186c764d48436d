import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * Consumes a topic with official push consumers until MESSAGES places have come, and no message for a while. Arguments:
 * GROUP TOPIC TAGS concurrently|orderly CONSUMERS MESSAGES. Prints a line for each message, in the order of queue and offset: queue id, queue
 * offset, and how often it came; then "disorder N", the messages that an orderly consumer got out of order. The name
 * server comes from the system property rocketmq.namesrv.addr. With consume.first=true a new group begins at the first
 * offset, consume.pull.interval.ms is the pause after a pull, and with acl.access and acl.secret requests are signed.
 * The client waits 15 s for an answer; everything else is its default.
 */
public class Consume {
  private static final long IDLE_MS = 5000;
  private static final boolean FIRST = Boolean.getBoolean("consume.first");
  private static final long PULL_INTERVAL_MS = Long.getLong("consume.pull.interval.ms", 0);
  private static final String ACCESS = System.getProperty("acl.access");
  private static final Map<Long, AtomicInteger> seen = new ConcurrentHashMap<>();
  private static final Map<Integer, Long> last = new ConcurrentHashMap<>();
  private static final AtomicInteger disorder = new AtomicInteger();
  private static final AtomicLong newest = new AtomicLong();

  public static void main(String[] args) {
    try {
      boolean orderly = args[3].equals("orderly");
      run(args[0], args[1], args[2], orderly, Integer.parseInt(args[4]), Integer.parseInt(args[5]));
      System.exit(0);
    } catch (Throwable e) { // the client's threads would keep the process alive
      e.printStackTrace();
      System.exit(1);
    }
  }

  private static RPCHook signing() {
    return new AclClientRPCHook(new SessionCredentials(ACCESS, System.getProperty("acl.secret")));
  }

  private static void run(String group, String topic, String tags, boolean orderly, int count, int messages)
      throws Exception {
    List<DefaultMQPushConsumer> consumers = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      DefaultMQPushConsumer consumer = ACCESS == null
          ? new DefaultMQPushConsumer(group)
          : new DefaultMQPushConsumer(group, signing(), new AllocateMessageQueueAveragely());
      consumer.setInstanceName("consumer-" + i);
      consumer.subscribe(topic, tags);
      if (FIRST) {
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
      }
      consumer.setPullInterval(PULL_INTERVAL_MS);
      consumer.setMqClientApiTimeout(15_000); // of 3 s, a start fails on a busy machine
      if (orderly) {
        consumer.registerMessageListener((MessageListenerOrderly) (batch, context) -> {
          batch.forEach(Consume::take);
          return ConsumeOrderlyStatus.SUCCESS;
        });
      } else {
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
          batch.forEach(Consume::take);
          return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
      }
      consumers.add(consumer);
    }
    newest.set(System.currentTimeMillis());
    for (DefaultMQPushConsumer consumer : consumers) {
      consumer.start();
    }
    while (seen.size() < messages || System.currentTimeMillis() - newest.get() < IDLE_MS) {
      Thread.sleep(50);
    }
    consumers.forEach(DefaultMQPushConsumer::shutdown); // commits the offsets
    List<Long> places = new ArrayList<>(seen.keySet());
    Collections.sort(places);
    for (long place : places) {
      System.out.println((place >> 48) + " " + (place & 0xFFFFFFFFFFFFL) + " " + seen.get(place));
    }
    System.out.println("disorder " + disorder);
  }

  private static void take(MessageExt message) {
    long place = (long) message.getQueueId() << 48 | message.getQueueOffset();
    seen.computeIfAbsent(place, key -> new AtomicInteger()).incrementAndGet();
    Long before = last.put(message.getQueueId(), message.getQueueOffset());
    if (before != null && before >= message.getQueueOffset()) {
      disorder.incrementAndGet();
    }
    newest.set(System.currentTimeMillis());
  }
}
