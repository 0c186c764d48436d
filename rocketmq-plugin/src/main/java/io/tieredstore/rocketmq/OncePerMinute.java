package io.tieredstore.rocketmq;

import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/** Limit of a log line that a failure would repeat for each request. */
final class OncePerMinute {
  private static final long INTERVAL_NS = TimeUnit.MINUTES.toNanos(1);
  private final AtomicLong lastNs = new AtomicLong(System.nanoTime() - INTERVAL_NS);

  /** Whether the line is due; then the next one is due in a minute. */
  boolean isDue() {
    long now = System.nanoTime();
    long last = lastNs.get();
    return now - last >= INTERVAL_NS && lastNs.compareAndSet(last, now);
  }
}
