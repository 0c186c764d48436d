package io.tieredstore.rocketmq;

import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.store.MessageFilter;

/** Arguments of a read of messages. */
final class Pull {
  private static final String HAS_SUBSCRIPTION = "4";
  final String group;
  final String topic;
  final int queue;
  final long offset;
  final int most;
  final int bytes;
  final MessageFilter filter;

  Pull(String group, String topic, int queue, long offset, int most, int bytes, MessageFilter filter) {
    this.group = group;
    this.topic = topic;
    this.queue = queue;
    this.offset = offset;
    this.most = most;
    this.bytes = bytes;
    this.filter = filter;
  }

  /** Fields of the request. It commits no offset and does not wait for a message. */
  Map<String, String> fields(String subscription) {
    Map<String, String> fields = queueFields(topic, queue);
    fields.put("consumerGroup", group);
    fields.put("queueOffset", Long.toString(offset));
    fields.put("maxMsgNums", Integer.toString(most));
    fields.put("maxMsgBytes", Integer.toString(bytes));
    fields.put("sysFlag", HAS_SUBSCRIPTION);
    fields.put("subscription", subscription);
    return fields;
  }

  static Map<String, String> queueFields(String topic, int queue) {
    Map<String, String> fields = new HashMap<>();
    fields.put("topic", topic);
    fields.put("queueId", Integer.toString(queue));
    return fields;
  }

  @Override
  public String toString() {
    return group + " in queue " + queue + " of " + topic + " at " + offset;
  }
}
