import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.reflect.Field;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.file.FileVisitResult;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.SimpleFileVisitor;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.ArrayList;
import java.util.Arrays;
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
 * everything else default. Arguments: DIRECTORY BODY_BYTES QUEUES MESSAGES. DIRECTORY must be empty or missing.
 *
 * <p>Takes one command a line from standard input, and answers each with one JSON object a line, until the input ends:
 *
 * <ul>
 *   <li>put, put_indexed: begin a store and put all messages into it, nothing is dispatched yet; "store" in the answer is
 *       its directory. The second one will build the key index beside its tier, the first one will not.
 *   <li>tier: dispatch until every ConsumeQueue is committed, without the pauses of the store's own loop, in batches as
 *       large as ours; with a key index, until all keys are found. tier_default: the same in batches of the default size.
 *   <li>read_32_by_1, read_32_by_4: every queue from its start, 32 messages a call, one call at a time in each of one or
 *       four groups, the heap cache emptied before; wrong_messages counts records that are not the ones asked for.
 *   <li>read_32_decoded: the first of them, and MessageDecoder.decode of every record.
 *   <li>put_made: as put_indexed, of messages that were made before.
 *   <li>put_and_tier: begin a store, put all messages, and dispatch meanwhile, in batches as large as ours, until every
 *       ConsumeQueue is committed and all keys are found.
 *   <li>query, offset_by_time: PROBES of each in the last store, one after the other; "p50_us" and "p99_us" are theirs.
 *   <li>restart: shut the store down, then construct, load and start it again; this alone is timed.
 *   <li>end: shut the store down and remove it.
 * </ul>
 *
 * All stores live in the same process, so that those after the first find compiled code. Garbage is collected before each
 * measurement; whoever gives the commands decides what else is waited for. CPU time is that of all threads of the JVM.
 */
public class Bench {
  private static final com.sun.management.OperatingSystemMXBean MACHINE =
      (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
  private static final String TOPIC = "bench";
  private static final String BROKER = "bench-a";
  private static final InetSocketAddress BORN_HOST = new InetSocketAddress("127.0.0.1", 40000);
  private static final InetSocketAddress STORE_HOST = new InetSocketAddress("127.0.0.1", 10911);
  private static final int READ_MESSAGES_MAX = 32;
  private static final int FRUITLESS_CALLS_MAX = 1000;
  private static final long STALLED_S_MAX = 120;
  private static final int WARM_UP_PROBES = 200;
  private static final int KEYS_ASKED = 200;
  private static final long KEYS_WITHIN_NANOS = 60_000_000_000L;
  private static final int PROBES = 1000;
  private static final int OUR_BATCH_MESSAGES = 32_768;
  private static final int OUR_BATCH_BYTES = 32 << 20;
  private static final int DEFAULT_BATCH_MESSAGES = 4096;
  private static final int DEFAULT_BATCH_BYTES = 4 << 20;

  private static Path directory;
  private static int bodyBytes;
  private static byte[][] bodies;
  private static int queues;
  private static int messages;
  private static int stores;
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
      messages = Integer.parseInt(args[3]);
      Store store = null;
      BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
      for (String command; (command = commands.readLine()) != null; ) {
        store = obey(command, store);
      }
      System.exit(0);
    } catch (Throwable e) { // the store's threads would keep the process alive
      e.printStackTrace();
      System.exit(1);
    }
  }

  /** Answers one command; the store that the next one is about. */
  private static Store obey(String command, Store store) throws Exception {
    Meter meter;
    long[] read;
    switch (command) {
      case "put":
      case "put_indexed":
        Store begun = new Store(directory.resolve("store-" + ++stores), command.equals("put_indexed"));
        begun.holdDispatch();
        meter = new Meter();
        begun.put();
        meter.print(command, begun, messages, begun.local.getMaxPhyOffset());
        return begun;
      case "tier":
      case "tier_default":
        store.allowDispatch(command.equals("tier"));
        meter = new Meter();
        store.dispatch();
        if (store.isIndexed) {
          store.awaitKeys();
        }
        meter.print(command, store, messages, store.tierBytes());
        return store;
      case "read_32_by_1":
      case "read_32_by_4":
      case "read_32_decoded":
        store.emptyCache();
        wrong.set(0);
        meter = new Meter();
        read = store.read(command.endsWith("by_4") ? 4 : 1, command.endsWith("decoded"));
        meter.print(command, store, read[0], read[1]);
        return store;
      case "put_made":
        Store filled = new Store(directory.resolve("store-" + ++stores), true);
        filled.holdDispatch();
        MessageExtBrokerInner[] made = new MessageExtBrokerInner[messages];
        for (int i = 0; i < messages; i++) {
          made[i] = message(i);
        }
        meter = new Meter();
        filled.put(made);
        meter.print(command, filled, messages, filled.local.getMaxPhyOffset());
        return filled;
      case "put_and_tier":
        Store tiered = new Store(directory.resolve("store-" + ++stores), true);
        tiered.setBatches(true);
        MessageExtBrokerInner[] ready = new MessageExtBrokerInner[messages];
        for (int i = 0; i < messages; i++) {
          ready[i] = message(i);
        }
        meter = new Meter();
        tiered.putAndTier(ready);
        meter.print(command, tiered, messages, tiered.tierBytes());
        return tiered;
      case "query":
        store.awaitKeys();
        // as the next one
      case "offset_by_time":
        store.probe(command, WARM_UP_PROBES);
        meter = new Meter();
        long[] nanos = store.probe(command, PROBES);
        meter.print(command, store, PROBES, 0, nanos);
        return store;
      case "restart":
        store.tier.shutdown();
        meter = new Meter();
        Store again = new Store(store.root, true);
        meter.print(command, again, messages, 0);
        return again;
      case "end":
        meter = new Meter();
        store.tier.shutdown();
        remove(store.root);
        meter.print(command, store, 0, 0);
        return null;
      default:
        throw new IllegalArgumentException(command);
    }
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
    private final long started;
    private final long processor;

    Meter() {
      System.gc();
      processor = MACHINE.getProcessCpuTime();
      started = System.nanoTime();
    }

    void print(String metric, Store store, long count, long bytes) {
      print(metric, store, count, bytes, new long[] {0});
    }

    void print(String metric, Store store, long count, long bytes, long[] nanos) {
      double seconds = (System.nanoTime() - started) / 1e9;
      double cpuSeconds = (MACHINE.getProcessCpuTime() - processor) / 1e9;
      System.out.printf(
          Locale.ROOT,
          "{\"metric\":\"%s\",\"store\":\"%s\",\"messages\":%d,\"bytes\":%d,\"seconds\":%.6f,\"cpu_seconds\":%.6f,"
              + "\"wrong_messages\":%d,\"p50_us\":%.1f,\"p99_us\":%.1f}%n",
          metric, store.root.resolve("store"), count, bytes, seconds, cpuSeconds,
          metric.startsWith("read_") ? wrong.get() : 0, nanos[nanos.length / 2] / 1e3, nanos[nanos.length * 99 / 100] / 1e3);
      System.out.flush();
    }
  }

  private static class Store {
    final DefaultMessageStore local;
    final TieredMessageStore tier;
    final Path root;
    final boolean isIndexed;
    private final org.apache.rocketmq.tieredstore.MessageStoreConfig settings;
    private final MessageStoreDispatcherImpl dispatcher;

    Store(Path root, boolean isIndexed) throws Exception {
      this.root = root;
      this.isIndexed = isIndexed;
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
      properties.setProperty("messageIndexEnable", String.valueOf(isIndexed));
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

    /** All messages, until the ConsumeQueues have them, too. */
    void put() throws Exception {
      for (int i = 0; i < messages; i++) {
        if (!local.putMessage(message(i)).isOk()) {
          throw new IllegalStateException("message " + i + " was refused");
        }
      }
      awaitConsumeQueues();
    }

    /** All of them, until the ConsumeQueues have them, too. */
    void put(MessageExtBrokerInner[] made) throws Exception {
      for (MessageExtBrokerInner message : made) {
        message.setBornTimestamp(System.currentTimeMillis());
        if (!local.putMessage(message).isOk()) {
          throw new IllegalStateException("a message was refused");
        }
      }
      awaitConsumeQueues();
    }

    /** Puts by this thread, while another one asks every 10 ms for commits of what is there. */
    void putAndTier(MessageExtBrokerInner[] made) throws Exception {
      AtomicLong failed = new AtomicLong();
      Thread tiering = new Thread(() -> {
        try {
          dispatch(10_000_000);
        } catch (RuntimeException e) {
          e.printStackTrace();
          failed.incrementAndGet();
        }
      });
      tiering.start();
      put(made);
      tiering.join();
      if (failed.get() > 0) {
        throw new IllegalStateException("tiering failed");
      }
      awaitKeys();
    }

    /**
     * Until keys of all parts of the store, and that of the last message of each queue, are found: a commit does not wait
     * for the index.
     */
    void awaitKeys() throws Exception {
      long givenUp = System.nanoTime() + KEYS_WITHIN_NANOS;
      for (int i = 0; i < KEYS_ASKED + queues; i++) {
        long number = i < KEYS_ASKED ? (long) (messages - 1) * i / KEYS_ASKED : messages - 1 - (i - KEYS_ASKED);
        String key = "order-" + Math.max(0, number);
        while (tier.queryMessageAsync(TOPIC, key, READ_MESSAGES_MAX, 0, Long.MAX_VALUE).join().getMessageMapedList().isEmpty()) {
          if (System.nanoTime() > givenUp) {
            throw new IllegalStateException("the index never had " + key);
          }
          Thread.sleep(1);
        }
      }
    }

    /** Nanoseconds of each of so many calls, ascending: random keys, or random moments of the time in which it was filled. */
    long[] probe(String what, int probes) throws Exception {
      Random random = new Random(7);
      long[] nanos = new long[probes];
      long first = local.getEarliestMessageTime(TOPIC, 0);
      long last = System.currentTimeMillis();
      for (int queue = 0; queue < queues; queue++) {
        last = Math.min(last, local.getMessageStoreTimeStamp(TOPIC, queue, expected(queue) - 1));
      }
      for (int i = 0; i < probes; i++) {
        int number = random.nextInt(messages);
        String key = (i & 1) == 0 ? "order-" + number : String.format("7F0000010B2A18B4AAC2%012X", number);
        long moment = first + (long) (random.nextDouble() * (last - first));
        long started = System.nanoTime();
        if (what.equals("query")) {
          if (tier.queryMessageAsync(TOPIC, key, READ_MESSAGES_MAX, 0, Long.MAX_VALUE).join().getMessageMapedList().isEmpty()) {
            throw new IllegalStateException("nothing is found by " + key);
          }
        } else {
          tier.getOffsetInQueueByTime(TOPIC, number % queues, moment);
        }
        nanos[i] = System.nanoTime() - started;
      }
      Arrays.sort(nanos);
      return nanos;
    }

    /** Dispatch from the beginning, in batches as large as ours or as the defaults. */
    void allowDispatch(boolean likeOurs) {
      for (FlatMessageFile file : files()) {
        if (!file.isFlatFileInit()) {
          file.initOffset(0);
        }
      }
      setBatches(likeOurs);
      settings.setTieredStoreGroupCommitTimeout(30_000);
    }

    void setBatches(boolean likeOurs) {
      settings.setTieredStoreGroupCommitCount(likeOurs ? OUR_BATCH_MESSAGES : DEFAULT_BATCH_MESSAGES);
      settings.setTieredStoreGroupCommitSize(likeOurs ? OUR_BATCH_BYTES : DEFAULT_BATCH_BYTES);
    }

    List<FlatMessageFile> files() {
      return tier.getFlatFileStore().deepCopyFlatFileToList();
    }

    long tierBytes() {
      return files().stream().mapToLong(FlatMessageFile::getCommitLogCommitOffset).sum() + 20L * messages;
    }

    private void awaitConsumeQueues() throws Exception {
      for (int queue = 0; queue < queues; queue++) {
        while (local.getMaxOffsetInQueue(TOPIC, queue) < expected(queue)) {
          Thread.sleep(1);
        }
        tier.getFlatFileStore().computeIfAbsent(new MessageQueue(TOPIC, BROKER, queue));
      }
    }

    /** Asks for the next commit of every file whose previous one is finished, without the pauses of the store's loop. */
    void dispatch() {
      dispatch(100_000);
    }

    private void dispatch(long pauseNanos) {
      long committed = -1;
      long moved = System.nanoTime();
      while (true) {
        List<FlatMessageFile> files = files();
        long sum = 0;
        for (FlatMessageFile file : files) {
          if (!file.isFlatFileInit()) {
            file.initOffset(0);
          }
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
        LockSupport.parkNanos(pauseNanos);
      }
    }

    void emptyCache() throws ReflectiveOperationException {
      ((MessageStoreFetcherImpl) field(tier, "fetcher")).getFetcherCache().invalidateAll();
    }

    /** Messages and bytes that all groups together got. */
    long[] read(int groups, boolean decodes) throws InterruptedException {
      AtomicLong count = new AtomicLong();
      AtomicLong bytes = new AtomicLong();
      AtomicLong failed = new AtomicLong();
      List<Thread> threads = new ArrayList<>();
      for (int i = 0; i < groups; i++) {
        String group = "group-" + i;
        Thread thread = new Thread(() -> {
          try {
            for (int queue = 0; queue < queues; queue++) {
              readQueue(group, queue, decodes, count, bytes);
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

    private void readQueue(String group, int queue, boolean decodes, AtomicLong count, AtomicLong bytes) {
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
          if (decodes && MessageDecoder.decode(buffer) == null) {
            throw new IllegalStateException("a record of queue " + queue + " that cannot be decoded");
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
