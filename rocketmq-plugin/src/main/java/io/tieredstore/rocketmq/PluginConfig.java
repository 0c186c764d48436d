package io.tieredstore.rocketmq;

/** Settings of the plug-in in broker.conf; the broker calls the setters by name. */
public class PluginConfig {
  private String tieredStoreServeAddress = "127.0.0.1:10970";
  private String tieredStorageLevel = "NOT_IN_DISK";
  private String tieredStorePluginTlsTrustCertPath = "";
  private String tieredStorePluginTlsCertPath = "";
  private String tieredStorePluginTlsKeyPath = "";
  private String tieredStorePluginAccountPath = "";

  public String getTieredStoreServeAddress() {
    return tieredStoreServeAddress;
  }

  public void setTieredStoreServeAddress(String address) {
    tieredStoreServeAddress = address;
  }

  public String getTieredStorageLevel() {
    return tieredStorageLevel;
  }

  public void setTieredStorageLevel(String level) {
    tieredStorageLevel = level;
  }

  /** Authorities of the server's certificate (PEM); empty: no TLS. */
  public String getTieredStorePluginTlsTrustCertPath() {
    return tieredStorePluginTlsTrustCertPath;
  }

  public void setTieredStorePluginTlsTrustCertPath(String path) {
    tieredStorePluginTlsTrustCertPath = path;
  }

  /** This broker's certificate chain (PEM), for a server that asks for one; empty: none. */
  public String getTieredStorePluginTlsCertPath() {
    return tieredStorePluginTlsCertPath;
  }

  public void setTieredStorePluginTlsCertPath(String path) {
    tieredStorePluginTlsCertPath = path;
  }

  /** Key of tieredStorePluginTlsCertPath (PEM, PKCS #8, without a password). */
  public String getTieredStorePluginTlsKeyPath() {
    return tieredStorePluginTlsKeyPath;
  }

  public void setTieredStorePluginTlsKeyPath(String path) {
    tieredStorePluginTlsKeyPath = path;
  }

  /** File with the access key and the secret that sign requests; empty: they are not signed. */
  public String getTieredStorePluginAccountPath() {
    return tieredStorePluginAccountPath;
  }

  public void setTieredStorePluginAccountPath(String path) {
    tieredStorePluginAccountPath = path;
  }
}
