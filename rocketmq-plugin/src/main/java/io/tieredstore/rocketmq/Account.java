package io.tieredstore.rocketmq;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.security.GeneralSecurityException;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/** Access key and secret that sign requests as RocketMQ's ACL does. The secret stays in its file: mqadmin shows broker.conf. */
final class Account {
  private static final String ALGORITHM = "HmacSHA1";
  private final String accessKey;
  private final SecretKeySpec secret;

  private Account(String accessKey, String secret) {
    this.accessKey = accessKey;
    this.secret = new SecretKeySpec(secret.getBytes(StandardCharsets.UTF_8), ALGORITHM);
  }

  /** Read a file with one line, as the server's own file of accounts has them; null without a path. */
  static Account read(String path) throws IOException {
    if (path.isEmpty()) {
      return null;
    }
    Path file = Paths.get(path);
    List<String[]> accounts = Files.readAllLines(file, StandardCharsets.UTF_8).stream().map(String::trim)
        .filter(line -> !line.isEmpty() && !line.startsWith("#")).map(line -> line.split("\\s+")).collect(Collectors.toList());
    if (accounts.size() != 1 || accounts.get(0).length != 2) {
      throw new IOException("the file does not have one line with an access key and its secret");
    }
    return new Account(accounts.get(0)[0], accounts.get(0)[1]);
  }

  /** Fields of a request without a body, and its signature: of all values in the order of their names. */
  Map<String, String> signed(Map<String, String> fields) {
    TreeMap<String, String> all = new TreeMap<>(fields);
    all.put("AccessKey", accessKey);
    try {
      Mac mac = Mac.getInstance(ALGORITHM);
      mac.init(secret);
      byte[] signature = mac.doFinal(String.join("", all.values()).getBytes(StandardCharsets.UTF_8));
      all.put("Signature", Base64.getEncoder().encodeToString(signature));
    } catch (GeneralSecurityException impossible) { // each Java machine has this algorithm
      throw new IllegalStateException(impossible);
    }
    return all;
  }
}
