package io.tieredstore.rocketmq;

import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.util.Map;
import org.apache.rocketmq.common.filter.ExpressionType;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.remoting.protocol.heartbeat.SubscriptionData;
import org.apache.rocketmq.store.MessageFilter;

/**
 * Filter of a pull. Tags go to the server as text, so that it sends matching messages only. Any other filter is applied
 * here to all messages, and so are tags if every message is wanted.
 */
final class TagFilter {
  private static final String FIELD = "subscriptionData";
  private static final String EVERYTHING = "*";
  private final MessageFilter filter;
  private final String tags;

  TagFilter(MessageFilter filter, boolean wantsEvery) {
    this.filter = filter;
    this.tags = filter == null ? EVERYTHING : wantsEvery ? null : tagsOf(filter);
  }

  /** Subscription for the server. */
  String subscription() {
    return tags == null ? EVERYTHING : tags;
  }

  /** Whether a message that the server sent goes to the consumer. */
  boolean accepts(ByteBuffer message) {
    if (tags != null) {
      return true;
    }
    Map<String, String> properties = MessageDecoder.decodeProperties(message.duplicate());
    String tag = properties == null ? null : properties.get(MessageConst.PROPERTY_TAGS);
    return filter.isMatchedByConsumeQueue(MessageExtBrokerInner.tagsString2tagsCode(null, tag), null)
        && filter.isMatchedByCommitLog(message.duplicate(), properties);
  }

  /** The broker's filters keep their subscription in a field without a getter, here or in a superclass; null: other ones. */
  private static String tagsOf(MessageFilter filter) {
    for (Class<?> type = filter.getClass(); type != null; type = type.getSuperclass()) {
      try {
        Field field = type.getDeclaredField(FIELD);
        field.setAccessible(true);
        SubscriptionData data = (SubscriptionData) field.get(filter);
        boolean byTags = data != null && !data.isClassFilterMode() && ExpressionType.isTagType(data.getExpressionType());
        return byTags ? data.getSubString() : null;
      } catch (NoSuchFieldException inSuperclass) {
        // looked for there next
      } catch (IllegalAccessException | RuntimeException unknown) {
        return null;
      }
    }
    return null;
  }
}
