package io.tieredstore.rocketmq;

import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.logging.org.slf4j.Logger;
import org.apache.rocketmq.logging.org.slf4j.LoggerFactory;
import org.apache.rocketmq.remoting.InvokeCallback;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyRemotingClient;
import org.apache.rocketmq.remoting.netty.ResponseFuture;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/** Connection to `tieredstore serve` by the broker's own remoting client. A thread polls the ranges of the tier. */
final class TierClient {
  private static final Logger LOG = LoggerFactory.getLogger("RocketmqBroker");
  private static final int TIER_RANGES = 30501;
  private static final String VERSION = "1";
  private static final long POLL_MS = 500;
  private static final long TIMEOUT_MS = 5000;
  private static final long SAVE_NS = TimeUnit.SECONDS.toNanos(10);
  /** An answer has at most 256 KiB of messages: 128 MiB in all. */
  private static final int REQUESTS_MAX = 512;

  private final PluginConfig config;
  private final String address;
  private final String cluster;
  private final String broker;
  private final TierRanges ranges;
  private NettyRemotingClient client;
  private ServerTls tls;
  private Account account;
  private final Semaphore free = new Semaphore(REQUESTS_MAX);
  private final CountDownLatch stopped = new CountDownLatch(1);
  private final OncePerMinute warning = new OncePerMinute();
  private volatile boolean up;
  private volatile boolean fresh;
  private String since = "";
  private boolean unsaved;
  private long savedNs = System.nanoTime() - SAVE_NS;

  TierClient(PluginConfig config, String cluster, String broker, TierRanges ranges) {
    this.config = config;
    this.address = config.getTieredStoreServeAddress();
    this.cluster = cluster;
    this.broker = broker;
    this.ranges = ranges;
  }

  /** Read the files of the account and of TLS. An exception is the reason for which the broker cannot start. */
  void secure() throws IOException {
    try {
      account = Account.read(config.getTieredStorePluginAccountPath());
    } catch (IOException | RuntimeException unusable) {
      String path = config.getTieredStorePluginAccountPath();
      throw new IOException("tieredStorePluginAccountPath (" + path + ") cannot be used: " + unusable, unusable);
    }
    tls = ServerTls.of(config);
  }

  void start() {
    client = new Client(tls);
    client.start();
    Thread poller = new Thread(this::poll, "TieredStoreRanges");
    poller.setDaemon(true);
    poller.start();
  }

  void stop() {
    stopped.countDown();
    if (client != null) { // the store may have refused to start
      client.shutdown();
    }
  }

  /** Whether the last poll was answered by a server that reads the tier's newest metadata. */
  boolean isFresh() {
    return up && fresh;
  }

  /** Ask without blocking. A request fails at once while the server is down: a connect would hold the broker's thread. */
  CompletableFuture<RemotingCommand> ask(int code, Map<String, String> fields) {
    CompletableFuture<RemotingCommand> answer = new CompletableFuture<>();
    if (!up || !free.tryAcquire()) {
      answer.completeExceptionally(new IOException(up ? REQUESTS_MAX + " requests wait" : address + " does not answer"));
      return answer;
    }
    AtomicBoolean held = new AtomicBoolean(true);
    answer.whenComplete((response, failure) -> {
      if (held.getAndSet(false)) {
        free.release();
      }
    });
    try {
      client.invokeAsync(address, request(code, fields), TIMEOUT_MS, new Callback(answer));
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      answer.completeExceptionally(interrupted);
    } catch (Exception failure) {
      answer.completeExceptionally(failure);
    }
    return answer;
  }

  private void poll() {
    try {
      do {
        pollOnce();
        saveIfDue(false);
      } while (!stopped.await(POLL_MS, TimeUnit.MILLISECONDS));
      saveIfDue(true);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
  }

  private void pollOnce() throws InterruptedException {
    try {
      Map<String, String> fields = new HashMap<>();
      fields.put("version", VERSION);
      fields.put("cluster", cluster);
      fields.put("broker", broker);
      fields.put("since", since);
      RemotingCommand response = client.invokeSync(address, request(TIER_RANGES, fields), TIMEOUT_MS);
      if (response.getCode() != 0) {
        throw new IOException(response.getRemark());
      }
      byte[] rows = response.getBody();
      ranges.update(rows, Boolean.parseBoolean(response.getExtFields().get("all")));
      unsaved |= rows != null && rows.length > 0;
      since = response.getExtFields().get("sequence");
      fresh = Boolean.parseBoolean(response.getExtFields().get("fresh"));
      if (!up) {
        LOG.info("tieredstore: {} serves the tier of this broker", address);
      }
      up = true;
    } catch (InterruptedException interrupted) {
      throw interrupted;
    } catch (Exception failure) {
      up = false;
      Throwable handshake = tls == null ? null : tls.takeFailure();
      if (warning.isDue()) {
        String reason = String.valueOf(handshake == null ? failure : handshake);
        LOG.warn("tieredstore: cold messages are not served, and their consumers retry ({}): {}", address, reason);
      }
    }
  }

  private void saveIfDue(boolean isLast) {
    if (!unsaved || !isLast && System.nanoTime() - savedNs < SAVE_NS) {
      return;
    }
    savedNs = System.nanoTime();
    try {
      ranges.save();
      unsaved = false;
    } catch (IOException | RuntimeException failure) {
      LOG.warn("tieredstore: the ranges of the tier are not saved: {}", failure.toString());
    }
  }

  private RemotingCommand request(int code, Map<String, String> fields) {
    RemotingCommand request = RemotingCommand.createRequestCommand(code, null);
    (account == null ? fields : account.signed(fields)).forEach(request::addExtField);
    return request;
  }

  /** Client with TLS of its own, or without: a broker with `-Dtls.enable=true` gives all others its own. */
  private static final class Client extends NettyRemotingClient {
    Client(ServerTls tls) {
      this(tls, plain());
    }

    private Client(ServerTls tls, NettyClientConfig config) {
      super(config);
      config.setUseTLS(tls != null);
      sslContext = tls;
    }

    private static NettyClientConfig plain() {
      NettyClientConfig config = new NettyClientConfig();
      config.setUseTLS(false);
      config.setConnectTimeoutMillis(1000);
      config.setClientWorkerThreads(2);
      return config;
    }
  }

  /** From 5.2 on the client reports a failed connect by operationFail alone, which 5.1 does not know: no @Override. */
  private static final class Callback implements InvokeCallback {
    private final CompletableFuture<RemotingCommand> answer;

    Callback(CompletableFuture<RemotingCommand> answer) {
      this.answer = answer;
    }

    @Override
    public void operationComplete(ResponseFuture future) {
      if (future.getResponseCommand() == null) {
        operationFail(future.getCause());
      } else {
        answer.complete(future.getResponseCommand());
      }
    }

    public void operationSucceed(RemotingCommand response) {
      answer.complete(response);
    }

    public void operationFail(Throwable failure) {
      answer.completeExceptionally(new IOException("no answer", failure));
    }
  }
}
