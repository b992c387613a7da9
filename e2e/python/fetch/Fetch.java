/** Fetches a URL with Java's own client, its own idea of roots, and the headers that it sends by itself. */
public class Fetch {
    public static void main(String[] arguments) throws Exception {
        try (var stream = new java.net.URL(arguments[0]).openStream()) {
            System.out.write(stream.readAllBytes());
            System.out.flush();
        }
    }
}
