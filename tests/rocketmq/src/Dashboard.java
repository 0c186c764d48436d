import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * The calls behind the pages of rocketmq-dashboard 2.1, in which there is a consumer of the topic. Arguments: TOPIC GROUP. A
 * line a call: its name, `ok` and what it showed, or `refused` and the code. The name server comes from the system property
 * rocketmq.namesrv.addr.
 */
public class Dashboard {
  private static final long FAR_MS = 4_000_000_000_000L;

  public static void main(String[] args) {
    try {
      show(args[0], args[1]);
      System.exit(0);
    } catch (Throwable e) { // the clients' threads would keep the process alive
      e.printStackTrace();
      System.exit(1);
    }
  }

  private static void show(String topic, String group) throws Exception {
    CountDownLatch consumed = new CountDownLatch(1);
    DefaultMQPushConsumer member = new DefaultMQPushConsumer(group);
    member.subscribe(topic, "*");
    member.setMqClientApiTimeout(15_000); // of 3 s, a start fails on a busy machine
    member.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
      consumed.countDown();
      return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    });
    member.start();
    consumed.await();
    DefaultMQAdminExt admin = new DefaultMQAdminExt(10_000);
    admin.setInstanceName("dashboard");
    admin.start();
    pages(admin, topic, group);
  }

  private static void pages(DefaultMQAdminExt admin, String topic, String group) throws Exception {
    // cluster
    String broker = admin.examineBrokerClusterInfo().getBrokerAddrTable().keySet().iterator().next();
    String address = admin.examineBrokerClusterInfo().getBrokerAddrTable().get(broker).selectBrokerAddr();
    said("examineBrokerClusterInfo", () -> broker);
    said("fetchBrokerRuntimeStats", () -> admin.fetchBrokerRuntimeStats(address).getTable().get("brokerVersionDesc"));
    said("getBrokerConfig", () -> admin.getBrokerConfig(address).get("brokerName"));
    said("getNameServerAddressList", () -> admin.getNameServerAddressList().size());
    // topics
    said("fetchAllTopicList", () -> admin.fetchAllTopicList().getTopicList().contains(topic));
    said("getAllTopicConfig", () -> admin.getAllTopicConfig(address, 10_000L).getTopicConfigTable().containsKey(topic));
    said("examineTopicRouteInfo", () -> admin.examineTopicRouteInfo(topic).getQueueDatas().size());
    said("examineTopicStats", () -> admin.examineTopicStats(topic).getOffsetTable().size());
    said("examineTopicConfig", () -> admin.examineTopicConfig(address, topic).getReadQueueNums());
    said("queryTopicConsumeByWho", () -> admin.queryTopicConsumeByWho(topic).getGroupList().contains(group));
    // home: the collector logs these two and goes on
    said("viewBrokerStatsData TOPIC_PUT_NUMS", () -> admin.viewBrokerStatsData(address, "TOPIC_PUT_NUMS", topic));
    said("viewBrokerStatsData GROUP_GET_NUMS", () -> admin.viewBrokerStatsData(address, "GROUP_GET_NUMS", topic + "@" + group));
    // consumers
    said("getAllSubscriptionGroup",
        () -> admin.getAllSubscriptionGroup(address, 30_000L).getSubscriptionGroupTable().containsKey(group));
    said("examineConsumeStats", () -> admin.examineConsumeStats(group).getOffsetTable().size());
    said("examineConsumeStats of an address",
        () -> admin.examineConsumeStats(address, group, null, 3_000).getOffsetTable().size());
    said("examineConsumeStats of a topic", () -> admin.examineConsumeStats(group, topic).getOffsetTable().size());
    said("examineConsumerConnectionInfo", () -> admin.examineConsumerConnectionInfo(group, address).getConnectionSet().size());
    String client = admin.examineConsumerConnectionInfo(group).getConnectionSet().iterator().next().getClientId();
    said("getConsumerRunningInfo", () -> admin.getConsumerRunningInfo(group, client, false).getSubscriptionSet().size());
    said("getConsumerRunningInfo with threads", () -> admin.getConsumerRunningInfo(group, client, true).getJstack() != null);
    said("getConsumeStatus", () -> admin.getConsumeStatus(topic, group, client).keySet().contains(client));
    said("examineSubscriptionGroupConfig", () -> admin.examineSubscriptionGroupConfig(address, group).getGroupName());
    said("resetOffsetByTimestamp", () -> admin.resetOffsetByTimestamp(topic, group, 0, true).size());
    // messages
    DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(MixAll.TOOLS_CONSUMER_GROUP);
    consumer.setInstanceName("messages");
    consumer.start();
    List<MessageQueue> queues = Arrays.asList(consumer.fetchSubscribeMessageQueues(topic).toArray(new MessageQueue[0]));
    MessageExt first = consumer.pull(queues.get(0), "*", consumer.searchOffset(queues.get(0), 0), 32).getMsgFoundList().get(0);
    said("pull", () -> first.getQueueOffset());
    said("searchOffset", () -> consumer.searchOffset(queues.get(0), FAR_MS) > 0);
    String key = first.getKeys().split(" ")[0];
    said("queryMessage", () -> admin.queryMessage(topic, key, 64, 0, FAR_MS).getMessageList().get(0).getKeys().contains(key));
    said("viewMessage", () -> admin.viewMessage(topic, first.getMsgId()).getQueueOffset());
    said("messageTrackDetail", () -> admin.messageTrackDetail(first).get(0).getConsumerGroup());
    said("queryConsumeQueue", () -> admin.queryConsumeQueue(address, topic, 0, 0, 3, group).getQueueData().size());
    said("queryConsumeTimeSpan", () -> admin.queryConsumeTimeSpan(topic, group).size());
    // producers, and what would write
    said("examineProducerConnectionInfo", () -> admin.examineProducerConnectionInfo("P", topic));
    said("createAndUpdateTopicConfig", () -> {
      admin.createAndUpdateTopicConfig(address, admin.examineTopicConfig(address, topic));
      return "";
    });
    said("deleteSubscriptionGroup", () -> {
      admin.deleteSubscriptionGroup(address, group, true);
      return "";
    });
  }

  private static void said(String name, Callable<Object> call) {
    String outcome;
    try {
      outcome = "ok " + call.call();
    } catch (MQClientException refused) {
      outcome = "refused " + refused.getResponseCode();
    } catch (MQBrokerException refused) {
      outcome = "refused " + refused.getResponseCode();
    } catch (Exception failure) {
      outcome = "failed " + failure;
    }
    System.out.printf(Locale.ROOT, "%s: %s%n", name, outcome);
  }
}
