package io.tieredstore.rocketmq;

import io.netty.buffer.ByteBufAllocator;
import io.netty.handler.ssl.ApplicationProtocolNegotiator;
import io.netty.handler.ssl.SslContext;
import io.netty.handler.ssl.SslContextBuilder;
import io.netty.handler.ssl.SslHandler;
import java.io.File;
import java.io.IOException;
import java.util.List;
import java.util.concurrent.atomic.AtomicReference;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSessionContext;

/**
 * TLS to one server, whose certificate must name its host. RocketMQ's own context is that of the whole broker, comes from
 * system properties, and compares no host names.
 */
final class ServerTls extends SslContext {
  private final SslContext context;
  private final String host;
  private final int port;
  private final AtomicReference<Throwable> failure = new AtomicReference<>();

  private ServerTls(SslContext context, String host, int port) {
    this.context = context;
    this.host = host;
    this.port = port;
  }

  /** TLS as broker.conf configures it; null without the server's authorities. */
  static ServerTls of(PluginConfig config) throws IOException {
    String authorities = config.getTieredStorePluginTlsTrustCertPath();
    String certificates = config.getTieredStorePluginTlsCertPath();
    String key = config.getTieredStorePluginTlsKeyPath();
    if (certificates.isEmpty() != key.isEmpty()) {
      throw new IOException("tieredStorePluginTlsCertPath and tieredStorePluginTlsKeyPath are set together or not at all");
    }
    if (authorities.isEmpty()) {
      if (!certificates.isEmpty()) {
        throw new IOException("tieredStorePluginTlsCertPath needs tieredStorePluginTlsTrustCertPath");
      }
      return null;
    }
    String[] words = config.getTieredStoreServeAddress().split(":");
    if (words.length != 2 || !words[1].matches("\\d{1,5}")) {
      throw new IOException("tieredStoreServeAddress (" + config.getTieredStoreServeAddress() + ") is no host and port");
    }
    try {
      SslContextBuilder builder = SslContextBuilder.forClient().trustManager(new File(authorities));
      if (!certificates.isEmpty()) {
        builder.keyManager(new File(certificates), new File(key));
      }
      return new ServerTls(builder.build(), words[0], Integer.parseInt(words[1]));
    } catch (IOException | RuntimeException unusable) {
      Throwable cause = unusable.getCause() == null ? unusable : unusable.getCause();
      throw new IOException("the files of tieredStorePluginTls... cannot be used: " + cause, unusable);
    }
  }

  /** Reason for which a handshake failed since the last call; null if none did. */
  Throwable takeFailure() {
    return failure.getAndSet(null);
  }

  @Override
  protected SslHandler newHandler(ByteBufAllocator allocator, boolean startTls) {
    SslHandler handler = super.newHandler(allocator, startTls);
    handler.handshakeFuture().addListener(done -> failure.set(done.cause()));
    return handler;
  }

  @Override
  public SSLEngine newEngine(ByteBufAllocator allocator) {
    return newEngine(allocator, host, port);
  }

  @Override
  public SSLEngine newEngine(ByteBufAllocator allocator, String peerHost, int peerPort) {
    SSLEngine engine = context.newEngine(allocator, peerHost, peerPort);
    SSLParameters parameters = engine.getSSLParameters();
    parameters.setEndpointIdentificationAlgorithm("HTTPS");
    engine.setSSLParameters(parameters);
    return engine;
  }

  @Override
  public boolean isClient() {
    return true;
  }

  @Override
  public List<String> cipherSuites() {
    return context.cipherSuites();
  }

  @Override
  @SuppressWarnings("deprecation")
  public ApplicationProtocolNegotiator applicationProtocolNegotiator() {
    return context.applicationProtocolNegotiator();
  }

  @Override
  public SSLSessionContext sessionContext() {
    return context.sessionContext();
  }
}
