import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Looks for messages by key through a running broker with the official client. Arguments: IN OUT. A line of IN is a
 * topic, a tab and a key; a line of OUT holds the queue id and offset of each message of the same line of IN.
 */
public class Query {
  private static final int MESSAGES_MAX = 64;

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
    DefaultMQPullConsumer client = Client.started("CG_query");
    Path in = Paths.get(args[0]);
    try (PrintWriter out = new PrintWriter(Files.newBufferedWriter(Paths.get(args[1]), StandardCharsets.UTF_8))) {
      for (String line : Files.readAllLines(in, StandardCharsets.UTF_8)) {
        String[] words = line.split("\t", 2);
        List<String> found = new ArrayList<>();
        try {
          for (MessageExt message : client.queryMessage(words[0], words[1], MESSAGES_MAX, 0, Long.MAX_VALUE)
              .getMessageList()) {
            found.add("[" + message.getQueueId() + ", " + message.getQueueOffset() + "]");
          }
        } catch (MQClientException nothingFound) {
          // the client's word for an empty answer
        }
        Collections.sort(found);
        out.println("[" + String.join(", ", found) + "]");
      }
    }
    client.shutdown();
  }
}
