import java.lang.reflect.Method;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A member of a group, until its input ends or it is killed. Arguments: GROUP TOPIC NAME KIND PAUSE_MS, where KIND is
 * push, orderly, broadcasting or lite. Prints a line for each message when it has come: queue id and queue offset.
 * The name server comes from the system property rocketmq.namesrv.addr. A program for clients of 4.x as well.
 */
public class Member {
  private static long pauseMs;

  public static void main(String[] args) {
    try {
      pauseMs = Long.parseLong(args[4]);
      if (args[3].equals("lite")) {
        poll(args[0], args[1], args[2]);
      } else {
        push(args[0], args[1], args[2], args[3]);
      }
      System.exit(0);
    } catch (Throwable e) { // the client's threads would keep the process alive
      e.printStackTrace();
      System.exit(1);
    }
  }

  private static void poll(String group, String topic, String name) throws Exception {
    DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
    consumer.setInstanceName(name);
    consumer.setMqClientApiTimeout(15_000); // of 3 s, a start fails on a busy machine
    consumer.subscribe(topic, "*");
    consumer.start();
    while (System.in.available() == 0) {
      consumer.poll(200).forEach(Member::take);
    }
    consumer.commitSync();
    consumer.shutdown();
  }

  private static void push(String group, String topic, String name, String kind) throws Exception {
    DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
    consumer.setInstanceName(name);
    consumer.setMqClientApiTimeout(15_000); // of 3 s, a start fails on a busy machine
    consumer.subscribe(topic, "*");
    consumer.setConsumeThreadMin(1);
    consumer.setConsumeThreadMax(1);
    if (kind.equals("broadcasting")) { // it keeps its offsets itself, and asks for the server's of none
      broadcast(consumer);
      consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    }
    if (kind.equals("orderly")) {
      consumer.registerMessageListener((MessageListenerOrderly) (batch, context) -> {
        batch.forEach(Member::take);
        return ConsumeOrderlyStatus.SUCCESS;
      });
    } else {
      consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
        batch.forEach(Member::take);
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
      });
    }
    consumer.start();
    System.in.read();
    consumer.shutdown(); // commits the offsets
  }

  /** 4.x and 5.x have the type of the argument in different packages. */
  private static void broadcast(DefaultMQPushConsumer consumer) throws Exception {
    for (Method method : DefaultMQPushConsumer.class.getMethods()) {
      if (method.getName().equals("setMessageModel")) {
        Class<?> model = method.getParameterTypes()[0];
        method.invoke(consumer, model.getField("BROADCASTING").get(null));
      }
    }
  }

  private static synchronized void take(MessageExt message) {
    System.out.println(message.getQueueId() + " " + message.getQueueOffset());
    try {
      Thread.sleep(pauseMs);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
  }
}
