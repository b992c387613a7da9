/** A TLS client with Java's own idea of roots. */
public class Client {
    public static void main(String[] arguments) throws Exception {
        new java.net.URL(arguments[0]).openStream().close();
    }
}
