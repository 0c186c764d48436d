import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs commands of mqadmin, one after another in this process. Arguments: IN OUT. A line of IN has the words of a
 * command, with tabs between them. OUT/N is what the command of line N printed. The name server comes from the system
 * property rocketmq.namesrv.addr.
 */
public class Admin {
  public static void main(String[] args) throws Exception {
    int number = 0;
    for (String line : Files.readAllLines(Paths.get(args[0]), StandardCharsets.UTF_8)) {
      ByteArrayOutputStream said = new ByteArrayOutputStream();
      System.setOut(new PrintStream(said, true, "UTF-8"));
      MQAdminStartup.main0(line.split("\t"), null);
      Files.write(Paths.get(args[1], Integer.toString(number++)), said.toByteArray());
    }
    System.exit(0); // the client's threads would keep the process alive
  }
}
