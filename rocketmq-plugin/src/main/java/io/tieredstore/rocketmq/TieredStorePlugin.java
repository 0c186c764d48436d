package io.tieredstore.rocketmq;

import io.tieredstore.rocketmq.TierRanges.Range;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Supplier;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.topic.TopicValidator;
import org.apache.rocketmq.logging.org.slf4j.Logger;
import org.apache.rocketmq.logging.org.slf4j.LoggerFactory;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.MessageFilter;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.BrokerRole;
import org.apache.rocketmq.store.plugin.AbstractPluginMessageStore;
import org.apache.rocketmq.store.plugin.MessageStorePluginContext;
import org.apache.rocketmq.store.rocksdb.MessageRocksDBStorage;
import org.apache.rocketmq.store.timer.rocksdb.TimerMessageRocksDBStore;
import org.apache.rocketmq.store.transaction.TransMessageRocksDBStore;

/**
 * Store of a broker whose deleted messages come from a tier, by way of `tieredstore serve`. Messages that the local store has
 * are its own answers, unless the level is FORCE.
 *
 * <p>A read of deleted messages that the tier does not answer now is null. The broker's pull answers null with an error,
 * which clients retry, and its pop commits nothing. Any other result would move the consumer to another offset.
 */
public class TieredStorePlugin extends AbstractPluginMessageStore {
  private static final Logger LOG = LoggerFactory.getLogger("RocketmqBroker");
  private static final String FORCE = "FORCE";
  private static final List<String> LEVELS = Collections.unmodifiableList(Arrays.asList("NOT_IN_DISK", FORCE));
  /** A pull that names no bound of its bytes. */
  private static final int BYTES_MAX = 256 << 10;
  private static final CompletableFuture<GetMessageResult> NOT_NOW = CompletableFuture.completedFuture(null);
  private static final long TIME_MS = 1000;
  private static final long QUERY_MS = 3000;

  private final PluginConfig config = new PluginConfig();
  private final TierRanges ranges;
  private final TierClient client;
  private final OncePerMinute warning = new OncePerMinute();

  /** The broker reports any exception of this constructor as a class that was not found: nothing here can fail. */
  public TieredStorePlugin(MessageStorePluginContext context, MessageStore next) {
    super(context, next);
    context.registerConfiguration(config);
    Path file = Paths.get(context.getMessageStoreConfig().getStorePathRootDir(), "config", "tieredStoreRanges");
    ranges = new TierRanges(file);
    client = new TierClient(config, context.getBrokerConfig().getBrokerClusterName(), context.getBrokerConfig().getBrokerName(),
        ranges);
  }

  @Override
  public boolean load() {
    String refusal = refusal();
    if (refusal != null) {
      LOG.error("tieredstore: the broker does not start: {}", refusal);
      return false;
    }
    try {
      ranges.load();
    } catch (IOException failure) {
      LOG.warn("tieredstore: the ranges of the tier are not known until the server answers: {}", failure.toString());
    }
    client.start();
    return next.load();
  }

  /** Reason for which this broker is not supported; null if it is. */
  private String refusal() {
    if (!LEVELS.contains(config.getTieredStorageLevel())) {
      return "tieredStorageLevel is " + config.getTieredStorageLevel() + ", and the plug-in knows " + LEVELS;
    }
    if (context.getMessageStoreConfig().isEnableDLegerCommitLog()) {
      return "enableDLegerCommitLog is not supported by the plug-in";
    }
    if (context.getBrokerConfig().isEnableControllerMode()) {
      return "enableControllerMode is not supported by the plug-in";
    }
    if (context.getMessageStoreConfig().getBrokerRole() == BrokerRole.SLAVE) {
      return "a slave (brokerRole) is not supported by the plug-in";
    }
    if (next.getClass().getSimpleName().contains("RocksDB")) {
      return "ConsumeQueues in RocksDB (storeType) are not supported by the plug-in";
    }
    try {
      client.secure();
    } catch (IOException unusable) {
      return unusable.getMessage();
    }
    return null;
  }

  @Override
  public void shutdown() {
    next.shutdown();
    client.stop();
  }

  // ---- Deleted topics

  @Override
  public int deleteTopics(Set<String> topics) {
    remember(topics);
    return next.deleteTopics(topics);
  }

  @Override
  public int cleanUnusedTopic(Set<String> kept) {
    Set<String> unused = ranges.topics();
    unused.removeAll(kept);
    remember(unused);
    return next.cleanUnusedTopic(kept);
  }

  /** The broker gives the offsets of a deleted topic again. Until the follower sees that, the tier answers for the old ones. */
  private void remember(Set<String> deleted) {
    try {
      ranges.delete(deleted);
    } catch (IOException failure) {
      LOG.warn("tieredstore: the deletion of {} is not remembered over a restart: {}", deleted, failure.toString());
    }
  }

  private boolean isOfDeletedQueue(String topic, ByteBuffer message) {
    return Records.storeTime(message) < ranges.deletedMs(topic);
  }

  // ---- Where a message is

  /** Range of the tier with messages; null without, and where the queue was longer in the tier than it is here. */
  private Range rangeOf(String topic, int queue) {
    Range range = isNeverTiered(topic) ? null : ranges.of(topic, queue); // before the local end, which the tier follows
    return range == null || range.isEmpty() || range.end > localEnd(topic, queue) ? null : range;
  }

  /** Whether the local store had this message and deleted it. */
  private boolean isDeleted(String topic, int queue, long offset) {
    return offset >= 0 && !isNeverTiered(topic) && offset < localEnd(topic, queue) && !isHere(topic, queue, offset);
  }

  /**
   * Whether the local store has a message. While the broker deletes several files, checkInStoreByConsumeOffset is true for
   * those behind the first, and a read of them goes on at the next file.
   */
  private boolean isHere(String topic, int queue, long offset) {
    if (!next.checkInStoreByConsumeOffset(topic, queue, offset)) {
      return false;
    }
    SelectMappedBufferResult held = next.selectOneMessageByOffset(next.getCommitLogOffsetInQueue(topic, queue, offset));
    if (held == null) {
      return false;
    }
    held.release();
    return true;
  }

  /** Topics of RocketMQ's own, as the follower leaves them out. */
  private static boolean isNeverTiered(String topic) {
    return TopicValidator.isSystemTopic(topic) || MixAll.isLmq(topic);
  }

  private long localEnd(String topic, int queue) {
    try {
      return next.getMaxOffsetInQueue(topic, queue);
    } catch (Exception failure) { // of 5.3 on: a checked exception whose class 5.1 does not have
      throw new IllegalStateException(failure);
    }
  }

  // ---- Messages

  @Override
  public CompletableFuture<GetMessageResult> getMessageAsync(String group, String topic, int queue, long offset, int most,
      MessageFilter filter) {
    return read(new Pull(group, topic, queue, offset, most, BYTES_MAX, filter),
        () -> next.getMessageAsync(group, topic, queue, offset, most, filter));
  }

  @Override
  public CompletableFuture<GetMessageResult> getMessageAsync(String group, String topic, int queue, long offset, int most, int bytes,
      MessageFilter filter) {
    return read(new Pull(group, topic, queue, offset, most, bytes, filter),
        () -> next.getMessageAsync(group, topic, queue, offset, most, bytes, filter));
  }

  @Override
  public GetMessageResult getMessage(String group, String topic, int queue, long offset, int most, MessageFilter filter) {
    return getMessageAsync(group, topic, queue, offset, most, filter).join();
  }

  @Override
  public GetMessageResult getMessage(String group, String topic, int queue, long offset, int most, int bytes, MessageFilter filter) {
    return getMessageAsync(group, topic, queue, offset, most, bytes, filter).join();
  }

  private CompletableFuture<GetMessageResult> read(Pull pull, Supplier<CompletableFuture<GetMessageResult>> local) {
    if (isDeleted(pull.topic, pull.queue, pull.offset)) {
      return readTier(pull, local);
    }
    if (FORCE.equals(config.getTieredStorageLevel())) {
      Range range = rangeOf(pull.topic, pull.queue);
      if (range != null && range.holds(pull.offset)) {
        return askMessages(pull).thenCompose(found -> found != null && found.getStatus() == GetMessageStatus.FOUND
            ? CompletableFuture.completedFuture(found) : readLocal(pull, local));
      }
    }
    return readLocal(pull, local);
  }

  /** Read the local store, and the tier if the first message was deleted before the end of the read. Later ones go later. */
  private CompletableFuture<GetMessageResult> readLocal(Pull pull, Supplier<CompletableFuture<GetMessageResult>> local) {
    return local.get().thenCompose(found -> {
      if (found == null) {
        return NOT_NOW;
      }
      if (isDeleted(pull.topic, pull.queue, pull.offset)) {
        found.release();
        return readTier(pull, local);
      }
      Range range = rangeOf(pull.topic, pull.queue);
      if (range != null && range.first < found.getMinOffset()) {
        found.setMinOffset(range.first);
      }
      return CompletableFuture.completedFuture(found);
    });
  }

  /** Read deleted messages. */
  private CompletableFuture<GetMessageResult> readTier(Pull pull, Supplier<CompletableFuture<GetMessageResult>> local) {
    Range range = ranges.of(pull.topic, pull.queue);
    if (range == null) {
      return readUnknown(pull, local);
    }
    if (pull.offset < range.first) { // expired in the tier, too, or of a gap before its first message
      return CompletableFuture.completedFuture(moved(pull, range.first));
    }
    // A tier with more messages than the local queue is of an earlier one of the name, or the broker lost its newest ones.
    boolean isOfThisQueue = range.end <= localEnd(pull.topic, pull.queue);
    return isOfThisQueue && range.holds(pull.offset) ? askMessages(pull) : waiting(pull);
  }

  /** Let a reader try again: the messages are not tiered yet, and no gap is recorded in their place. */
  private CompletableFuture<GetMessageResult> waiting(Pull pull) {
    if (warning.isDue()) {
      LOG.warn("tieredstore: {} waits for messages that were deleted and are not tiered yet", pull);
    }
    return NOT_NOW;
  }

  /**
   * Read deleted messages of a queue that the tier does not have. They are waited for, as long as the queue has messages to
   * tier. If all were deleted, nobody ever tiers them.
   */
  private CompletableFuture<GetMessageResult> readUnknown(Pull pull, Supplier<CompletableFuture<GetMessageResult>> local) {
    boolean isEmpty = next.getMinOffsetInQueue(pull.topic, pull.queue) >= localEnd(pull.topic, pull.queue);
    if (!isEmpty || !client.isFresh()) {
      return waiting(pull);
    }
    if (warning.isDue()) {
      LOG.warn("tieredstore: {} passes messages that were deleted and never tiered", pull);
    }
    return local.get();
  }

  private CompletableFuture<GetMessageResult> askMessages(Pull pull) {
    TagFilter tags = new TagFilter(pull.filter, ranges.deletedMs(pull.topic) > 0);
    return client.ask(RequestCode.PULL_MESSAGE, pull.fields(tags.subscription()))
        .thenApply(answer -> decoded(answer, pull, tags))
        .exceptionally(failure -> {
          LOG.debug("tieredstore: {} is not read: {}", pull, failure.toString());
          return null;
        });
  }

  /** Result of an answer, whose remark is the status; null if it has none, or if the messages are not in the tier yet. */
  private GetMessageResult decoded(RemotingCommand answer, Pull pull, TagFilter tags) {
    Map<String, String> fields = answer.getExtFields();
    if (fields == null || !fields.containsKey("nextBeginOffset")) {
      return null;
    }
    long following = Long.parseLong(fields.get("nextBeginOffset"));
    switch (GetMessageStatus.valueOf(answer.getRemark())) {
      case FOUND:
        break;
      case NO_MATCHED_MESSAGE:
      case OFFSET_FOUND_NULL: // a gap: with this status a pull would wait before it
        return empty(pull, GetMessageStatus.NO_MATCHED_MESSAGE, following);
      case OFFSET_TOO_SMALL:
        return moved(pull, following);
      default:
        return null;
    }
    GetMessageResult result = empty(pull, GetMessageStatus.FOUND, following);
    for (ByteBuffer message : Records.in(answer.getBody())) {
      if (isOfDeletedQueue(pull.topic, message)) {
        return null;
      }
      if (tags.accepts(message)) {
        result.addMessage(Records.selected(message), Records.queueOffset(message));
      }
    }
    if (result.getMessageCount() == 0) {
      result.setStatus(GetMessageStatus.NO_MATCHED_MESSAGE);
    }
    return result;
  }

  /** Move a reader to the first message behind, in the tier or here; null while the local store does not know its own. */
  private GetMessageResult moved(Pull pull, long tierFirst) {
    long localFirst = next.getMinOffsetInQueue(pull.topic, pull.queue);
    long following = localFirst < 0 ? tierFirst : Math.min(tierFirst, localFirst);
    return following <= pull.offset ? null : empty(pull, GetMessageStatus.OFFSET_TOO_SMALL, following);
  }

  private GetMessageResult empty(Pull pull, GetMessageStatus status, long following) {
    GetMessageResult result = new GetMessageResult();
    result.setStatus(status);
    result.setNextBeginOffset(following);
    result.setMinOffset(getMinOffsetInQueue(pull.topic, pull.queue));
    result.setMaxOffset(localEnd(pull.topic, pull.queue));
    return result;
  }

  // ---- Offsets and times

  @Override
  public long getMinOffsetInQueue(String topic, int queue) {
    long local = next.getMinOffsetInQueue(topic, queue);
    Range range = rangeOf(topic, queue);
    if (range == null) {
      return local;
    }
    return local < 0 ? range.first : Math.min(local, range.first);
  }

  @Override
  public long getEarliestMessageTime(String topic, int queue) {
    Range range = rangeOf(topic, queue);
    return range != null && isDeleted(topic, queue, range.first) ? getMessageStoreTimeStamp(topic, queue, range.first)
        : next.getEarliestMessageTime(topic, queue);
  }

  @Override
  public CompletableFuture<Long> getEarliestMessageTimeAsync(String topic, int queue) {
    return CompletableFuture.completedFuture(getEarliestMessageTime(topic, queue));
  }

  @Override
  public long getMessageStoreTimeStamp(String topic, int queue, long offset) {
    if (!isDeleted(topic, queue, offset)) {
      return next.getMessageStoreTimeStamp(topic, queue, offset);
    }
    Pull pull = new Pull("tieredstore", topic, queue, offset, 1, 1, null);
    List<ByteBuffer> messages = messagesOf(answered(client.ask(RequestCode.PULL_MESSAGE, pull.fields("*")), TIME_MS));
    boolean isFound = !messages.isEmpty() && Records.queueOffset(messages.get(0)) == offset
        && !isOfDeletedQueue(topic, messages.get(0));
    return isFound ? Records.storeTime(messages.get(0)) : -1;
  }

  @Override
  public CompletableFuture<Long> getMessageStoreTimeStampAsync(String topic, int queue, long offset) {
    return CompletableFuture.completedFuture(getMessageStoreTimeStamp(topic, queue, offset));
  }

  @Override
  public long getOffsetInQueueByTime(String topic, int queue, long time) {
    return getOffsetInQueueByTime(topic, queue, time, BoundaryType.LOWER);
  }

  @Override
  public long getOffsetInQueueByTime(String topic, int queue, long time, BoundaryType boundary) {
    Range range = rangeOf(topic, queue);
    if (range == null || !isDeleted(topic, queue, range.first)) {
      return next.getOffsetInQueueByTime(topic, queue, time, boundary);
    }
    long localFirst = next.getEarliestMessageTime(topic, queue);
    if (localFirst >= 0 && time > localFirst) {
      return next.getOffsetInQueueByTime(topic, queue, time, boundary);
    }
    Map<String, String> fields = Pull.queueFields(topic, queue);
    fields.put("timestamp", Long.toString(Math.max(time, ranges.deletedMs(topic))));
    fields.put("boundaryType", boundary == BoundaryType.UPPER ? "upper" : "lower");
    RemotingCommand answer = answered(client.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields), TIME_MS);
    if (answer == null || answer.getCode() != ResponseCode.SUCCESS) {
      throw new IllegalStateException("the tier does not answer, which has the messages of that time: try again");
    }
    long found = Math.max(range.first, Long.parseLong(answer.getExtFields().get("offset")));
    return found < range.end ? found : next.getOffsetInQueueByTime(topic, queue, time, boundary);
  }

  /** Answer to a caller that blocks; null without one in time. */
  private static RemotingCommand answered(CompletableFuture<RemotingCommand> asked, long mostMs) {
    try {
      return asked.get(mostMs, TimeUnit.MILLISECONDS);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      return null;
    } catch (ExecutionException | TimeoutException failure) {
      return null;
    }
  }

  private static List<ByteBuffer> messagesOf(RemotingCommand answer) {
    boolean isFound = answer != null && answer.getCode() == ResponseCode.SUCCESS;
    return isFound ? Records.in(answer.getBody()) : Collections.<ByteBuffer>emptyList();
  }

  // ---- Keys

  @Override
  public QueryMessageResult queryMessage(String topic, String key, int most, long begin, long end) {
    return withTier(next.queryMessage(topic, key, most, begin, end), topic, key, most, begin, end);
  }

  @Override
  public CompletableFuture<QueryMessageResult> queryMessageAsync(String topic, String key, int most, long begin, long end) {
    return CompletableFuture.completedFuture(queryMessage(topic, key, most, begin, end));
  }

  /** Add the tier's messages to the local ones. The tier has many of the local ones as well. */
  private QueryMessageResult withTier(QueryMessageResult local, String topic, String key, int most, long begin, long end) {
    if (local.getMessageBufferList().size() >= most || next.getMinPhyOffset() <= 0) {
      return local;
    }
    Map<String, String> fields = new HashMap<>();
    fields.put("topic", topic);
    fields.put("key", key);
    fields.put("maxNum", Integer.toString(most));
    fields.put("beginTimestamp", Long.toString(begin));
    fields.put("endTimestamp", Long.toString(end));
    for (ByteBuffer message : messagesOf(answered(client.ask(RequestCode.QUERY_MESSAGE, fields), QUERY_MS))) {
      boolean isNew = !has(local, message) && !isOfDeletedQueue(topic, message);
      if (isNew && local.getMessageBufferList().size() < most) {
        local.addMessage(Records.selected(message));
      }
    }
    return local;
  }

  private static boolean has(QueryMessageResult found, ByteBuffer message) {
    return found.getMessageBufferList().stream().anyMatch(one -> Records.queueId(one) == Records.queueId(message)
        && Records.queueOffset(one) == Records.queueOffset(message));
  }

  // ---- Abstract in 5.5, unknown to older brokers, which never resolve these types: no @Override

  public QueryMessageResult queryMessage(String topic, String key, int most, long begin, long end, String kind, String last) {
    return withTier(next.queryMessage(topic, key, most, begin, end, kind, last), topic, key, most, begin, end);
  }

  public CompletableFuture<QueryMessageResult> queryMessageAsync(String topic, String key, int most, long begin, long end,
      String kind, String last) {
    return CompletableFuture.completedFuture(queryMessage(topic, key, most, begin, end, kind, last));
  }

  public TimerMessageRocksDBStore getTimerMessageRocksDBStore() {
    return next.getTimerMessageRocksDBStore();
  }

  public void setTimerMessageRocksDBStore(TimerMessageRocksDBStore store) {
    next.setTimerMessageRocksDBStore(store);
  }

  public TransMessageRocksDBStore getTransMessageRocksDBStore() {
    return next.getTransMessageRocksDBStore();
  }

  public void setTransMessageRocksDBStore(TransMessageRocksDBStore store) {
    next.setTransMessageRocksDBStore(store);
  }

  public MessageRocksDBStorage getMessageRocksDBStorage() {
    return next.getMessageRocksDBStorage();
  }
}
