import java.io.IOException;
import java.io.RandomAccessFile;
import java.lang.management.ManagementFactory;
import java.lang.reflect.Field;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.FileVisitResult;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.SimpleFileVisitor;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.logging.org.slf4j.LoggerFactory;
import org.apache.rocketmq.remoting.Configuration;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.MessageArrivingListener;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.plugin.MessageStorePluginContext;
import org.apache.rocketmq.store.stats.BrokerStatsManager;
import org.apache.rocketmq.tieredstore.TieredMessageStore;
import org.apache.rocketmq.tieredstore.core.MessageStoreDispatcherImpl;
import org.apache.rocketmq.tieredstore.core.MessageStoreFetcherImpl;
import org.apache.rocketmq.tieredstore.file.FlatMessageFile;

/**
 * RocketMQ's own tiered store, in this process, without broker or network: local store, POSIX provider, level FORCE,
 * everything else default. Arguments: DIRECTORY BODY_BYTES QUEUES MESSAGES ROUNDS. DIRECTORY must be empty or missing;
 * what is made in it is removed again.
 *
 * <p>Prints one JSON object a line for every figure of every round. Round 0 warms up with a tenth of the messages and is
 * to be ignored. Figures: put (into the local store, tier attached, nothing dispatched), dispatch (until every
 * ConsumeQueue is committed; with -Dbench.index=true the key index is built beside it, else there is none), read_1_group
 * and read_4_groups (every queue from its start, 32 messages a call, one call at a time in each group, heap cache
 * emptied before, page cache warm; wrong_messages counts records that were not the ones asked for), raw_write (4 MiB
 * pieces, each followed by fsync), raw_read (the same file back, out of the page cache).
 */
public class Bench {
  private static final com.sun.management.OperatingSystemMXBean MACHINE =
      (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
  private static final String TOPIC = "bench";
  private static final String BROKER = "bench-a";
  private static final InetSocketAddress BORN_HOST = new InetSocketAddress("127.0.0.1", 40000);
  private static final InetSocketAddress STORE_HOST = new InetSocketAddress("127.0.0.1", 10911);
  private static final int WARM_UP_MESSAGES_MIN = 20_000;
  private static final int PIECE_BYTES = 4 << 20;
  private static final int READ_MESSAGES_MAX = 32;
  private static final int FRUITLESS_CALLS_MAX = 1000;
  private static final long STALLED_S_MAX = 120;

  private static Path directory;
  private static int bodyBytes;
  private static byte[][] bodies;
  private static int queues;
  private static int messages;
  private static int round;
  private static final AtomicLong wrong = new AtomicLong();

  public static void main(String[] args) {
    try {
      directory = Paths.get(args[0]);
      bodyBytes = Integer.parseInt(args[1]);
      bodies = new byte[16][bodyBytes];
      Random random = new Random(3);
      for (byte[] body : bodies) {
        random.nextBytes(body);
      }
      queues = Integer.parseInt(args[2]);
      int wanted = Integer.parseInt(args[3]);
      int rounds = Integer.parseInt(args[4]);
      for (round = 0; round <= rounds; round++) {
        messages = round == 0 ? Math.min(wanted, Math.max(wanted / 10, WARM_UP_MESSAGES_MIN)) : wanted;
        Path store = directory.resolve("round-" + round);
        try {
          measure(new Store(store));
        } finally {
          remove(store);
        }
      }
      System.exit(0);
    } catch (Throwable e) { // the store's threads would keep the process alive
      e.printStackTrace();
      System.exit(1);
    }
  }

  private static void measure(Store store) throws Exception {
    store.holdDispatch();
    Meter meter = new Meter();
    for (int i = 0; i < messages; i++) {
      if (!store.local.putMessage(message(i)).isOk()) {
        throw new IllegalStateException("message " + i + " was refused");
      }
    }
    long bytes = store.local.getMaxPhyOffset();
    meter.print("put", messages, bytes);
    store.awaitConsumeQueues();

    for (FlatMessageFile file : store.files()) {
      if (!file.isFlatFileInit()) {
        file.initOffset(0);
      }
    }
    store.allowDispatch();
    meter = new Meter();
    store.dispatch();
    meter.print("dispatch", messages, store.tierBytes());

    for (int groups : new int[] {1, 4}) {
      store.emptyCache();
      System.gc();
      wrong.set(0);
      meter = new Meter();
      long[] read = store.read(groups);
      meter.print("read_" + groups + (groups == 1 ? "_group" : "_groups"), read[0], read[1]);
    }
    store.tier.shutdown();
    rawLimits(bytes);
  }

  private static MessageExtBrokerInner message(int number) {
    MessageExtBrokerInner message = new MessageExtBrokerInner();
    message.setTopic(TOPIC);
    message.setQueueId(number % queues);
    message.setBody(bodies[number % bodies.length]);
    message.setTags((number & 1) == 0 ? "TagA" : "TagB");
    message.setKeys("order-" + number);
    message.putUserProperty("seq", Integer.toString(number));
    String unique = String.format("7F0000010B2A18B4AAC2%012X", number);
    MessageAccessor.putProperty(message, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, unique);
    message.setBornTimestamp(System.currentTimeMillis());
    message.setBornHost(BORN_HOST);
    message.setStoreHost(STORE_HOST);
    message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
    return message;
  }

  private static long expected(int queue) {
    return messages / queues + (queue < messages % queues ? 1 : 0);
  }

  private static void rawLimits(long bytes) throws IOException {
    Path path = directory.resolve("raw");
    ByteBuffer piece = ByteBuffer.allocateDirect(PIECE_BYTES);
    long done = 0;
    Meter meter = new Meter();
    try (RandomAccessFile file = new RandomAccessFile(path.toFile(), "rw"); FileChannel channel = file.getChannel()) {
      while (done < bytes) {
        piece.clear();
        while (piece.hasRemaining()) {
          done += channel.write(piece);
        }
        channel.force(true);
      }
    }
    meter.print("raw_write", 0, done);
    meter = new Meter();
    done = 0;
    try (FileChannel channel = FileChannel.open(path)) {
      for (int got = 0; got >= 0; done += Math.max(0, got)) {
        piece.clear();
        got = channel.read(piece);
      }
    }
    meter.print("raw_read", 0, done);
    Files.delete(path);
  }

  private static void remove(Path root) throws IOException {
    Files.walkFileTree(root, new SimpleFileVisitor<Path>() {
      @Override
      public FileVisitResult visitFile(Path path, BasicFileAttributes attributes) throws IOException {
        Files.delete(path);
        return FileVisitResult.CONTINUE;
      }

      @Override
      public FileVisitResult postVisitDirectory(Path path, IOException error) throws IOException {
        Files.delete(path);
        return FileVisitResult.CONTINUE;
      }
    });
  }

  private static Object field(Object owner, String name) throws ReflectiveOperationException {
    for (Class<?> type = owner.getClass(); ; type = type.getSuperclass()) {
      try {
        Field field = type.getDeclaredField(name);
        field.setAccessible(true);
        return field.get(owner);
      } catch (NoSuchFieldException inSuperclass) {
        if (type.getSuperclass() == null) {
          throw inSuperclass;
        }
      }
    }
  }

  /** Wall and processor time since it was made. */
  private static class Meter {
    private final long started = System.nanoTime();
    private final long processor = MACHINE.getProcessCpuTime();

    void print(String metric, long count, long bytes) {
      double seconds = (System.nanoTime() - started) / 1e9;
      double cpuSeconds = (MACHINE.getProcessCpuTime() - processor) / 1e9;
      System.out.printf(
          Locale.ROOT,
          "{\"metric\":\"%s\",\"round\":%d,\"body_bytes\":%d,\"queues\":%d,\"messages\":%d,\"bytes\":%d,\"seconds\":%.6f,"
              + "\"cpu_seconds\":%.3f,\"messages_s\":%.0f,\"bytes_s\":%.0f,\"wrong_messages\":%d}%n",
          metric, round, bodyBytes, queues, count, bytes, seconds, cpuSeconds, count / seconds, bytes / seconds,
          metric.startsWith("read_") ? wrong.get() : 0);
      System.out.flush();
    }
  }

  private static class Store {
    final DefaultMessageStore local;
    final TieredMessageStore tier;
    private final org.apache.rocketmq.tieredstore.MessageStoreConfig settings;
    private final MessageStoreDispatcherImpl dispatcher;

    Store(Path root) throws Exception {
      MessageStoreConfig config = new MessageStoreConfig();
      config.setStorePathRootDir(root + "/store");
      config.setStorePathCommitLog(root + "/store/commitlog");
      config.setFlushDiskType(FlushDiskType.ASYNC_FLUSH);
      config.setTransientStorePoolEnable(false);
      config.setCleanFileForciblyEnable(false);
      config.setDiskMaxUsedSpaceRatio(95);
      config.setHaListenPort(0); // any free one
      BrokerConfig broker = new BrokerConfig();
      broker.setBrokerName(BROKER);
      broker.setBrokerClusterName("BenchCluster");
      BrokerStatsManager statistics = new BrokerStatsManager("BenchCluster", true);
      MessageArrivingListener listener = (topic, queue, offset, tags, time, filter, properties) -> { };
      local = new DefaultMessageStore(config, statistics, listener, broker, new ConcurrentHashMap<>());
      LoopbackReplication.install(local);
      Properties properties = new Properties();
      properties.setProperty("tieredBackendServiceProvider", "org.apache.rocketmq.tieredstore.provider.PosixFileSegment");
      properties.setProperty("tieredMetadataServiceProvider", "org.apache.rocketmq.tieredstore.metadata.DefaultMetadataStore");
      properties.setProperty("tieredStoreFilePath", root + "/tier");
      properties.setProperty("tieredStorageLevel", "FORCE");
      properties.setProperty("messageIndexEnable", String.valueOf(Boolean.getBoolean("bench.index")));
      Configuration configuration = new Configuration(LoggerFactory.getLogger("bench"), broker, config);
      configuration.registerConfig(properties);
      tier = new TieredMessageStore(new MessageStorePluginContext(config, statistics, listener, broker, configuration), local);
      settings = tier.getStoreConfig();
      dispatcher = (MessageStoreDispatcherImpl) field(tier, "dispatcher");
      if (!tier.load()) {
        throw new IllegalStateException("the store did not load");
      }
      tier.start();
    }

    void holdDispatch() {
      settings.setTieredStoreGroupCommitCount(Integer.MAX_VALUE);
      settings.setTieredStoreGroupCommitTimeout(Integer.MAX_VALUE);
    }

    /** Back to the defaults. */
    void allowDispatch() {
      settings.setTieredStoreGroupCommitCount(4096);
      settings.setTieredStoreGroupCommitSize(4 << 20);
      settings.setTieredStoreGroupCommitTimeout(30_000);
    }

    List<FlatMessageFile> files() {
      return tier.getFlatFileStore().deepCopyFlatFileToList();
    }

    long tierBytes() {
      return files().stream().mapToLong(FlatMessageFile::getCommitLogCommitOffset).sum() + 20L * messages;
    }

    void awaitConsumeQueues() throws Exception {
      for (int queue = 0; queue < queues; queue++) {
        while (local.getMaxOffsetInQueue(TOPIC, queue) < expected(queue)) {
          Thread.sleep(1);
        }
        tier.getFlatFileStore().computeIfAbsent(new MessageQueue(TOPIC, BROKER, queue));
      }
    }

    /** Asks for the next commit of every file whose previous one is finished, without the pauses of the store's loop. */
    void dispatch() {
      List<FlatMessageFile> files = files();
      long committed = -1;
      long moved = System.nanoTime();
      while (true) {
        long sum = 0;
        for (FlatMessageFile file : files) {
          long offset = file.getConsumeQueueCommitOffset();
          sum += offset;
          boolean idle = file.getCommitLock().availablePermits() > 0 && offset == file.getConsumeQueueMaxOffset();
          if (idle && offset < expected(file.getMessageQueue().getQueueId())) {
            dispatcher.doScheduleDispatch(file, true);
          }
        }
        if (sum == messages) {
          return;
        }
        if (sum != committed) {
          committed = sum;
          moved = System.nanoTime();
        } else if (System.nanoTime() - moved > STALLED_S_MAX * 1_000_000_000L) {
          throw new IllegalStateException("dispatch stands at " + sum + " of " + messages);
        }
        LockSupport.parkNanos(100_000);
      }
    }

    void emptyCache() throws ReflectiveOperationException {
      ((MessageStoreFetcherImpl) field(tier, "fetcher")).getFetcherCache().invalidateAll();
    }

    /** Messages and bytes that all groups together got. */
    long[] read(int groups) throws InterruptedException {
      AtomicLong count = new AtomicLong();
      AtomicLong bytes = new AtomicLong();
      AtomicLong failed = new AtomicLong();
      List<Thread> threads = new ArrayList<>();
      for (int i = 0; i < groups; i++) {
        String group = "group-" + i;
        Thread thread = new Thread(() -> {
          try {
            for (int queue = 0; queue < queues; queue++) {
              readQueue(group, queue, count, bytes);
            }
          } catch (RuntimeException e) {
            e.printStackTrace();
            failed.incrementAndGet();
          }
        });
        thread.start();
        threads.add(thread);
      }
      for (Thread thread : threads) {
        thread.join();
      }
      if (failed.get() > 0) {
        throw new IllegalStateException(failed + " of " + groups + " readers failed");
      }
      return new long[] {count.get(), bytes.get()};
    }

    private void readQueue(String group, int queue, AtomicLong count, AtomicLong bytes) {
      long offset = 0;
      int fruitless = 0;
      while (offset < expected(queue)) {
        GetMessageResult result = tier.getMessageAsync(group, TOPIC, queue, offset, READ_MESSAGES_MAX, null).join();
        if (result.getStatus() != GetMessageStatus.FOUND) {
          if (++fruitless > FRUITLESS_CALLS_MAX) {
            throw new IllegalStateException("no way past " + queue + " " + offset + ": " + result.getStatus());
          }
          result.release();
          continue;
        }
        fruitless = 0;
        long wanted = offset;
        for (SelectMappedBufferResult record : result.getMessageMapedList()) {
          ByteBuffer buffer = record.getByteBuffer();
          if (buffer.getLong(buffer.position() + 20) != wanted++) {
            wrong.incrementAndGet();
          }
        }
        count.addAndGet(result.getMessageCount());
        bytes.addAndGet(result.getBufferTotalSize());
        offset = result.getNextBeginOffset();
        result.release();
      }
    }
  }
}
