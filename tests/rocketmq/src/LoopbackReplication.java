import java.io.IOException;
import java.lang.reflect.Field;
import java.net.InetSocketAddress;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.ha.DefaultHAService;

/**
 * The replication service, listening on the loopback address only. `bindAddress` sees to the other ports, but for this
 * one RocketMQ has no setting, and switching the service off (`duplicationEnable`) stops consume queues altogether.
 */
class LoopbackReplication extends DefaultHAService {
  /** To be called before the store starts. */
  static void install(DefaultMessageStore store) throws ReflectiveOperationException {
    set(DefaultMessageStore.class, "haService", store, new LoopbackReplication());
  }

  @Override
  public void init(DefaultMessageStore store) throws IOException {
    super.init(store);
    InetSocketAddress address = new InetSocketAddress("127.0.0.1", store.getMessageStoreConfig().getHaListenPort());
    try {
      set(AcceptSocketService.class, "socketAddressListen", acceptSocketService, address);
    } catch (ReflectiveOperationException e) {
      throw new IOException(e);
    }
  }

  static void set(Class<?> type, String name, Object owner, Object value) throws ReflectiveOperationException {
    Field field = type.getDeclaredField(name);
    field.setAccessible(true);
    field.set(owner, value);
  }
}
