import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.Optional;
import java.util.UUID;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** What the Flink jobs share: a local cluster that continues from the newest complete checkpoint, and the orders. */
final class Common {
    static final String SERVERS = System.getenv("KAFKA_BOOTSTRAP_SERVERS");
    static final String NAME = System.getenv("PIPELINE_NAME");
    private static final Pattern ROW = Pattern.compile("\"id\": ?(\\d+).*\"amount\": ?(\\d+)");

    private Common() {}

    static StreamExecutionEnvironment environment() throws IOException {
        Path checkpoints = Path.of(System.getenv("PIPELINE_FOLDER"), "checkpoints");
        Configuration config = new Configuration();
        config.setString("execution.checkpointing.interval", "1 s");
        config.setString("execution.checkpointing.mode", "EXACTLY_ONCE");
        config.setString("execution.checkpointing.dir", checkpoints.toUri().toString());
        config.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
        // One job id in all lives, as with high availability or `standalone-job.sh --job-id`.
        String job = UUID.nameUUIDFromBytes(NAME.getBytes()).toString().replace("-", "");
        config.setString("$internal.pipeline.job-id", job);
        Optional<Path> newest = newest(checkpoints);
        newest.ifPresent(path -> config.setString("execution.state-recovery.path", path.toUri().toString()));
        System.out.println("continues from " + newest.map(Path::toString).orElse("the beginning"));
        return StreamExecutionEnvironment.getExecutionEnvironment(config).setParallelism(2);
    }

    /** A checkpoint is complete when its metadata is there. */
    private static Optional<Path> newest(Path checkpoints) throws IOException {
        if (!Files.exists(checkpoints)) {
            return Optional.empty();
        }
        try (Stream<Path> paths = Files.walk(checkpoints)) {
            return paths.filter(path -> path.endsWith("_metadata"))
                    .map(Path::getParent)
                    .max(Comparator.comparingInt(path -> Integer.parseInt(path.getFileName().toString().substring(4))));
        }
    }

    static DataStream<String> orders(StreamExecutionEnvironment environment) {
        KafkaSource<String> source =
                KafkaSource.<String>builder()
                        .setBootstrapServers(SERVERS)
                        .setTopics("orders")
                        .setGroupId(NAME)
                        .setStartingOffsets(OffsetsInitializer.earliest())
                        .setProperty("isolation.level", "read_committed")
                        .setValueOnlyDeserializer(new SimpleStringSchema())
                        .build();
        return environment.fromSource(source, WatermarkStrategy.noWatermarks(), "orders").uid("orders");
    }

    static long[] parsed(String row) {
        Matcher found = ROW.matcher(row);
        if (!found.find()) {
            throw new IllegalArgumentException(row);
        }
        return new long[] {Long.parseLong(found.group(1)), Long.parseLong(found.group(2))};
    }
}
