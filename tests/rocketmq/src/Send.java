import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Send MESSAGES messages to TOPIC, one every PAUSE ms, and write to OUT a line for each acknowledged one:
 * queue, offset, body. A message that is not acknowledged is sent again under the same body, so it may be there twice.
 */
public class Send {
  private static final int ATTEMPTS = 120;

  public static void main(String[] args) throws Exception {
    String topic = args[0];
    int messages = Integer.parseInt(args[1]);
    long pause = Long.parseLong(args[2]);
    DefaultMQProducer producer = new DefaultMQProducer("PG_" + topic);
    producer.setSendMsgTimeout(3000);
    producer.setPollNameServerInterval(1000);
    producer.start();
    try (PrintWriter out = new PrintWriter(Files.newBufferedWriter(Paths.get(args[3]), StandardCharsets.UTF_8), true)) {
      for (int i = 0; i < messages; i++) {
        Message message = new Message(topic, "TagA", (args[4] + i).getBytes(StandardCharsets.UTF_8));
        SendResult sent = sent(producer, message);
        out.println(sent.getMessageQueue().getQueueId() + " " + sent.getQueueOffset() + " " + args[4] + i);
        Thread.sleep(pause);
      }
    }
    System.exit(0);
  }

  private static SendResult sent(DefaultMQProducer producer, Message message) throws Exception {
    for (int attempt = 1; ; attempt++) {
      try {
        SendResult sent = producer.send(message);
        if (sent.getSendStatus() == SendStatus.SEND_OK || attempt == ATTEMPTS) {
          return sent;
        }
      } catch (Exception notNow) {
        if (attempt == ATTEMPTS) {
          throw notNow;
        }
      }
      Thread.sleep(500);
    }
  }
}
