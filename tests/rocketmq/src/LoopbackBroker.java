import java.lang.reflect.Field;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.plugin.AbstractPluginMessageStore;

/** The ordinary broker, all of whose ports listen on the loopback address. Arguments are the broker's own. */
public class LoopbackBroker {
  private static final Field NEXT = next();

  public static void main(String[] args) throws Exception {
    BrokerController controller = BrokerStartup.createBrokerController(args);
    MessageStore store = controller.getMessageStore();
    while (store instanceof AbstractPluginMessageStore) {
      store = (MessageStore) NEXT.get(store);
    }
    if (controller.getReplicasManager() == null) {
      LoopbackReplication.install((DefaultMessageStore) store);
    } else {
      LoopbackSwitching.install((DefaultMessageStore) store, controller.getReplicasManager());
    }
    BrokerStartup.start(controller);
  }

  /** Store inside a plug-in; 5.1 has no getter of it. */
  private static Field next() {
    try {
      Field field = AbstractPluginMessageStore.class.getDeclaredField("next");
      field.setAccessible(true);
      return field;
    } catch (NoSuchFieldException e) {
      throw new IllegalStateException(e);
    }
  }
}
