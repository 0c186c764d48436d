package io.tieredstore.rocketmq;

/** Settings of the plug-in in broker.conf; the broker calls the setters by name. */
public class PluginConfig {
  private String tieredStoreServeAddress = "127.0.0.1:10970";
  private String tieredStorageLevel = "NOT_IN_DISK";

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
}
