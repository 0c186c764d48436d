import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.plugin.AbstractPluginMessageStore;

/** The ordinary broker, all of whose ports listen on the loopback address. Arguments are the broker's own. */
public class LoopbackBroker {
  public static void main(String[] args) throws Exception {
    BrokerController controller = BrokerStartup.createBrokerController(args);
    MessageStore store = controller.getMessageStore();
    while (store instanceof AbstractPluginMessageStore) {
      store = ((AbstractPluginMessageStore) store).getNext();
    }
    if (controller.getReplicasManager() == null) {
      LoopbackReplication.install((DefaultMessageStore) store);
    } else {
      LoopbackSwitching.install((DefaultMessageStore) store, controller.getReplicasManager());
    }
    BrokerStartup.start(controller);
  }
}
