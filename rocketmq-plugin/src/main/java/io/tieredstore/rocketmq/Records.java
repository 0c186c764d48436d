package io.tieredstore.rocketmq;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/** Messages in RocketMQ's stored format. Positions count from the first byte of a message. */
final class Records {
  private static final int QUEUE_ID = 12;
  private static final int QUEUE_OFFSET = 20;
  private static final int POSITION = 28;
  private static final int SYS_FLAG = 36;
  private static final int BORN_HOST = 48;
  private static final int BORN_HOST_IPV6 = 0x10;

  private Records() {
  }

  /** Split the body of an answer; no bytes are copied. */
  static List<ByteBuffer> in(byte[] body) {
    List<ByteBuffer> found = new ArrayList<>();
    ByteBuffer rest = ByteBuffer.wrap(body == null ? new byte[0] : body);
    while (rest.hasRemaining()) {
      int size = rest.getInt(rest.position());
      if (size < BORN_HOST || size > rest.remaining()) {
        throw new IllegalArgumentException("a message of " + size + " bytes where " + rest.remaining() + " are left");
      }
      ByteBuffer one = rest.slice();
      one.limit(size);
      found.add(one.slice());
      rest.position(rest.position() + size);
    }
    return found;
  }

  static int queueId(ByteBuffer message) {
    return message.getInt(message.position() + QUEUE_ID);
  }

  static long queueOffset(ByteBuffer message) {
    return message.getLong(message.position() + QUEUE_OFFSET);
  }

  static long storeTime(ByteBuffer message) {
    boolean ipv6 = (message.getInt(message.position() + SYS_FLAG) & BORN_HOST_IPV6) != 0;
    return message.getLong(message.position() + BORN_HOST + (ipv6 ? 20 : 8));
  }

  static SelectMappedBufferResult selected(ByteBuffer message) {
    return new SelectMappedBufferResult(message.getLong(POSITION), message, message.remaining(), null);
  }
}
