import java.io.IOException;
import java.net.InetSocketAddress;
import org.apache.rocketmq.broker.controller.ReplicasManager;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.ha.autoswitch.AutoSwitchHAService;

/** The replication service of controller mode, listening on the loopback address only; see LoopbackReplication. */
class LoopbackSwitching extends AutoSwitchHAService {
  /** To be called before the store starts. */
  static void install(DefaultMessageStore store, ReplicasManager manager) throws ReflectiveOperationException {
    LoopbackSwitching service = new LoopbackSwitching();
    LoopbackReplication.set(DefaultMessageStore.class, "haService", store, service);
    LoopbackReplication.set(ReplicasManager.class, "haService", manager, service);
  }

  @Override
  public void init(DefaultMessageStore store) throws IOException {
    super.init(store);
    InetSocketAddress address = new InetSocketAddress("127.0.0.1", store.getMessageStoreConfig().getHaListenPort());
    try {
      LoopbackReplication.set(AcceptSocketService.class, "socketAddressListen", acceptSocketService, address);
    } catch (ReflectiveOperationException e) {
      throw new IOException(e);
    }
  }
}
