import com.sun.net.httpserver.HttpServer;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;

/**
 * The JDK's own HTTP server and client: {@code java HttpPeer.java server|client ADDRESS PORT}.
 *
 * <p>The server sends each body back; the client verifies it. Sizes and bytes are the same in every run.
 */
public final class HttpPeer {
    private static final int REQUESTS = 200;
    private static final int AT_ONCE = 8;
    private static final int[] SIZES = {1, 100, 4_000, 70_000, 1_000_000};

    public static void main(String[] arguments) throws Exception {
        InetAddress address = InetAddress.getByName(arguments[1]);
        int port = Integer.parseInt(arguments[2]);
        if (arguments[0].equals("server")) {
            serve(new InetSocketAddress(address, port));
        } else {
            String host = address.getHostAddress();
            work("http://" + (host.contains(":") ? "[" + host + "]" : host) + ":" + port + "/");
        }
    }

    private static void serve(InetSocketAddress address) throws Exception {
        HttpServer server = HttpServer.create(address, 64);
        server.setExecutor(Executors.newFixedThreadPool(8));
        server.createContext("/", exchange -> {
            byte[] body = exchange.getRequestBody().readAllBytes();
            exchange.sendResponseHeaders(200, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.start();
    }

    private static void work(String uri) throws Exception {
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        MessageDigest all = MessageDigest.getInstance("SHA-256");
        for (int start = 0; start < REQUESTS; start += AT_ONCE) {
            List<byte[]> bodies = new ArrayList<>();
            List<CompletableFuture<HttpResponse<byte[]>>> answers = new ArrayList<>();
            for (int number = start; number < start + AT_ONCE; number++) {
                byte[] body = new byte[SIZES[number % SIZES.length]];
                new Random(number).nextBytes(body);
                bodies.add(body);
                HttpRequest request = HttpRequest.newBuilder(URI.create(uri + number))
                        .POST(HttpRequest.BodyPublishers.ofByteArray(body)).build();
                answers.add(client.sendAsync(request, HttpResponse.BodyHandlers.ofByteArray()));
            }
            for (int index = 0; index < AT_ONCE; index++) {
                HttpResponse<byte[]> answer = answers.get(index).get();
                if (answer.statusCode() != 200 || !Arrays.equals(answer.body(), bodies.get(index))) {
                    throw new IllegalStateException("request " + (start + index) + ": other bytes came back");
                }
                all.update(answer.body());
            }
        }
        System.out.println("{\"checksum\": \"" + HexFormat.of().formatHex(all.digest()) + "\"}");
        System.exit(0);
    }
}
