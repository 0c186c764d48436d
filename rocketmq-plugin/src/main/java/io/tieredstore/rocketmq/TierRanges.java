package io.tieredstore.rocketmq;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Collection;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;

/**
 * Offsets of each queue that the tier can answer, as last heard, and when this broker deleted topics. A file keeps both for
 * a start of the broker: while the server is down, a new consumer would else begin at the first local message.
 */
final class TierRanges {
  /** Offsets from first to end, without end. */
  static final class Range {
    final long first;
    final long end;

    Range(long first, long end) {
      this.first = first;
      this.end = end;
    }

    boolean isEmpty() {
      return first >= end;
    }

    boolean holds(long offset) {
      return first <= offset && offset < end;
    }
  }

  private static final String RANGE = "range";
  private static final String DELETION = "deletion";
  private final Path file;
  private final Map<String, Range> ranges = new ConcurrentHashMap<>();
  private final Map<String, Long> deletions = new ConcurrentHashMap<>();

  TierRanges(Path file) {
    this.file = file;
  }

  /** Range of a queue, which may be empty; null if the tier does not have the queue. */
  Range of(String topic, int queue) {
    return ranges.get(key(topic, queue));
  }

  /** Topics of the tier. */
  Set<String> topics() {
    return ranges.keySet().stream().map(key -> key.substring(0, key.lastIndexOf('@'))).collect(Collectors.toSet());
  }

  /** Apply the rows of an answer; isAll: they replace everything. */
  void update(byte[] rows, boolean isAll) {
    Map<String, Range> heard = new ConcurrentHashMap<>();
    ByteBuffer in = ByteBuffer.wrap(rows == null ? new byte[0] : rows);
    while (in.hasRemaining()) {
      byte[] topic = new byte[in.getShort() & 0xFFFF];
      in.get(topic);
      heard.put(key(new String(topic, StandardCharsets.UTF_8), in.getInt()), new Range(in.getLong(), in.getLong()));
    }
    ranges.putAll(heard);
    if (isAll) {
      ranges.keySet().retainAll(heard.keySet());
    }
  }

  /** Remember, also over restarts, that topics are deleted now. Messages that were stored before are of an earlier queue. */
  void delete(Collection<String> topics) throws IOException {
    long now = System.currentTimeMillis();
    topics.forEach(topic -> deletions.put(topic, now));
    save();
  }

  /** Time of the last deletion of a topic, Unix ms; 0: it was never deleted. */
  long deletedMs(String topic) {
    return deletions.getOrDefault(topic, 0L);
  }

  void load() throws IOException {
    try {
      for (String line : Files.readAllLines(file, StandardCharsets.UTF_8)) {
        String[] words = line.split(" ");
        if (words[0].equals(DELETION)) {
          deletions.put(words[1], Long.parseLong(words[2]));
        } else {
          ranges.put(words[1], new Range(Long.parseLong(words[2]), Long.parseLong(words[3])));
        }
      }
    } catch (NoSuchFileException firstStart) {
      // nothing was heard yet
    } catch (RuntimeException damaged) {
      throw new IOException(file + " is damaged: " + damaged.getMessage(), damaged);
    }
  }

  synchronized void save() throws IOException {
    StringBuilder text = new StringBuilder();
    deletions.forEach((topic, ms) -> line(text, DELETION, topic, ms));
    ranges.forEach((queue, range) -> line(text, RANGE, queue, range.first, range.end));
    Path whole = file.resolveSibling(file.getFileName() + ".tmp");
    Files.createDirectories(file.getParent());
    Files.write(whole, text.toString().getBytes(StandardCharsets.UTF_8));
    Files.move(whole, file, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
  }

  private static void line(StringBuilder text, String kind, String name, long... numbers) {
    text.append(kind).append(' ').append(name);
    for (long number : numbers) {
      text.append(' ').append(number);
    }
    text.append('\n');
  }

  private static String key(String topic, int queue) {
    return topic + '@' + queue;
  }
}
