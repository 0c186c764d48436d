import java.lang.reflect.Field;
import java.lang.reflect.Method;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.plugin.AbstractPluginMessageStore;

/** The ordinary broker, all of whose ports listen on the loopback address. Arguments are the broker's own. */
public class LoopbackBroker {
  private static final int OWN_INTERVAL_MS = 10000;
  private static final int OWN_DELAY_MS = 55000;
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
    cleanFromTheStart((DefaultMessageStore) store);
  }

  /** RocketMQ deletes nothing in its first minute. A shorter cleanResourceInterval than its own begins at once. */
  private static void cleanFromTheStart(DefaultMessageStore store) throws Exception {
    int intervalMs = store.getMessageStoreConfig().getCleanResourceInterval();
    Method clean = DefaultMessageStore.class.getDeclaredMethod("cleanFilesPeriodically");
    clean.setAccessible(true);
    for (int ms = intervalMs; intervalMs < OWN_INTERVAL_MS && ms < OWN_DELAY_MS; ms += intervalMs) {
      Thread.sleep(intervalMs);
      clean.invoke(store);
    }
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
