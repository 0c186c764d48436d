import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Makes many topics at the broker, sends to them and deletes them, as an administrator's commands do, in one process.
 *
 * <pre>
 * Topics make PREFIX COUNT QUEUES
 * Topics send PREFIX COUNT QUEUES MESSAGES LIFE    bodies "LIFE n", n counting from 0 in each queue
 * Topics delete PREFIX COUNT
 * </pre>
 *
 * Topics are PREFIX0 and so on. Several commands may follow one another, separated by "then".
 */
public class Topics {
  private static final int ATTEMPTS = 240;
  /** As in the configuration of the tests' broker. */
  private static final String NAME = "test-a";

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
    Client.started("CG_Topics").shutdown(); // the name server knows the broker by then
    DefaultMQAdminExt admin = new DefaultMQAdminExt();
    admin.setInstanceName("admin");
    admin.start();
    String broker = admin.examineBrokerClusterInfo().getBrokerAddrTable().get(NAME).selectBrokerAddr();
    DefaultMQProducer producer = new DefaultMQProducer("PG_Topics");
    producer.setInstanceName("topics");
    producer.setSendMsgTimeout(10000);
    producer.start();
    List<String> command = new ArrayList<>();
    for (int i = 0; i <= args.length; i++) {
      if (i < args.length && !args[i].equals("then")) {
        command.add(args[i]);
        continue;
      }
      one(broker, admin, producer, command);
      command.clear();
    }
    producer.shutdown();
    admin.shutdown();
    System.out.println("done");
  }

  private static void one(String broker, DefaultMQAdminExt admin, DefaultMQProducer producer, List<String> command)
      throws Exception {
    String prefix = command.get(1);
    int count = Integer.parseInt(command.get(2));
    for (int i = 0; i < count; i++) {
      String topic = prefix + i;
      switch (command.get(0)) {
        case "make" -> make(broker, admin, topic, Integer.parseInt(command.get(3)));
        case "send" -> send(producer, topic, Integer.parseInt(command.get(3)), Integer.parseInt(command.get(4)), command.get(5));
        case "delete" -> admin.deleteTopicInBroker(Set.of(broker), topic);
        default -> throw new IllegalArgumentException(command.get(0));
      }
    }
  }

  private static void make(String broker, DefaultMQAdminExt admin, String topic, int queues) throws Exception {
    TopicConfig config = new TopicConfig(topic);
    config.setReadQueueNums(queues);
    config.setWriteQueueNums(queues);
    admin.createAndUpdateTopicConfig(broker, config);
  }

  private static void send(DefaultMQProducer producer, String topic, int queues, int messages, String life)
      throws Exception {
    for (int queue = 0; queue < queues; queue++) {
      MessageQueue place = new MessageQueue(topic, NAME, queue);
      for (int n = 0; n < messages; n++) {
        byte[] body = (life + " " + n).getBytes(StandardCharsets.UTF_8);
        for (int attempt = 1; ; attempt++) {
          try {
            producer.send(new Message(topic, body), place);
            break;
          } catch (MQClientException noRouteYet) { // nothing was sent
            if (attempt == ATTEMPTS) {
              throw noRouteYet;
            }
            Thread.sleep(250);
          }
        }
      }
    }
  }
}
