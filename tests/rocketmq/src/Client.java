import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.exception.MQClientException;

/** The official pull client, ready to use. */
class Client {
  private static final String SYSTEM_TOPIC = "TBW102";
  private static final int ATTEMPTS = 120;

  /**
   * Returns once the name server knows the broker, and with it every topic that the broker has. Until then a topic
   * that exists cannot be told from one that does not.
   */
  static DefaultMQPullConsumer started(String group) throws Exception {
    DefaultMQPullConsumer client = new DefaultMQPullConsumer(group);
    client.setInstanceName("pull");
    client.start();
    for (int attempt = 1; ; attempt++) {
      try {
        client.fetchSubscribeMessageQueues(SYSTEM_TOPIC);
        return client;
      } catch (MQClientException notRegisteredYet) {
        if (attempt == ATTEMPTS) {
          throw notRegisteredYet;
        }
        Thread.sleep(250);
      }
    }
  }
}
