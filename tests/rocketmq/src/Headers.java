import java.io.File;
import java.lang.annotation.Annotation;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.TreeSet;
import java.util.jar.JarFile;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.annotation.CFNotNull;

/** Prints the codes and headers of RocketMQ's remoting protocol, a line each, fields apart by tabs. */
public final class Headers {
  private static final String[] PACKAGES = {"org.apache.rocketmq.remoting.protocol.", "org.apache.rocketmq.common.protocol."};

  private Headers() {}

  /** Arguments: jars whose headers are listed. */
  public static void main(String[] jars) throws Exception {
    for (String kind : new String[] {"RequestCode", "ResponseCode"}) {
      Class<?> codes = named(kind);
      for (Class<?> one = codes; one != null; one = one.getSuperclass()) {
        for (Field field : one.getDeclaredFields()) {
          if (field.getType() == int.class && Modifier.isStatic(field.getModifiers())) {
            System.out.println(String.join("\t", kind, field.getName(), "" + field.getInt(null)));
          }
        }
      }
    }
    TreeSet<String> names = new TreeSet<>();
    for (String jar : jars) {
      try (JarFile file = new JarFile(new File(jar))) {
        file.stream().map(entry -> entry.getName()).filter(name -> name.endsWith("Header.class"))
          .forEach(name -> names.add(name.replace('/', '.').replaceAll("\\.class$", "")));
      }
    }
    for (String name : names) {
      Class<?> header = Class.forName(name, false, Headers.class.getClassLoader());
      if (CommandCustomHeader.class.isAssignableFrom(header) && !header.isInterface()) {
        list(header);
      }
    }
  }

  private static Class<?> named(String kind) throws ClassNotFoundException {
    try {
      return Class.forName(PACKAGES[0] + kind);
    } catch (ClassNotFoundException older) {
      return Class.forName(PACKAGES[1] + kind);
    }
  }

  private static void list(Class<?> header) throws Exception {
    String code = "";
    for (Annotation one : header.getAnnotations()) {
      if (one.annotationType().getSimpleName().equals("RocketMQAction")) {
        code = "" + one.annotationType().getMethod("value").invoke(one);
      }
    }
    System.out.println(String.join("\t", "header", header.getSimpleName(), code));
    for (Class<?> part = header; part != null; part = part.getSuperclass()) {
      for (Field field : part.getDeclaredFields()) {
        int modifiers = field.getModifiers();
        if (!Modifier.isStatic(modifiers) && !Modifier.isTransient(modifiers)) {
          boolean always = field.getType().isPrimitive() || field.isAnnotationPresent(CFNotNull.class);
          System.out.println(String.join("\t", "field", header.getSimpleName(), field.getName(),
            field.getType().getSimpleName(), "" + always));
        }
      }
    }
  }
}
