import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;

/** For benchmarks: copies a topic into one target after another in the same JVM, and prints how long each copy took. */
final class Copies {
    interface Sink {
        void add(DataStream<byte[][]> rows, String target);
    }

    private Copies() {}

    /** Reads the names of targets from standard input, one in a line. */
    static void run(Sink sink) throws Exception {
        BufferedReader targets = new BufferedReader(new InputStreamReader(System.in));
        for (String target = targets.readLine(); target != null; target = targets.readLine()) {
            Configuration config = new Configuration();
            config.setString("execution.checkpointing.interval", System.getenv("CHECKPOINT_INTERVAL"));
            config.setString("execution.checkpointing.mode", "EXACTLY_ONCE");
            config.setString("execution.checkpointing.dir", System.getenv("CHECKPOINTS"));
            StreamExecutionEnvironment environment =
                    StreamExecutionEnvironment.getExecutionEnvironment(config).setParallelism(2);
            KafkaSource<byte[][]> source =
                    KafkaSource.<byte[][]>builder()
                            .setBootstrapServers(System.getenv("KAFKA_BOOTSTRAP_SERVERS"))
                            .setTopics(System.getenv("TOPIC"))
                            .setGroupId("copies")
                            .setStartingOffsets(OffsetsInitializer.earliest())
                            .setBounded(OffsetsInitializer.latest())
                            .setDeserializer(new Message())
                            .build();
            sink.add(environment.fromSource(source, WatermarkStrategy.noWatermarks(), "topic"), target);
            System.out.println("took " + environment.execute().getNetRuntime());
        }
    }

    /** Key and value as they are. */
    private static final class Message implements KafkaRecordDeserializationSchema<byte[][]> {
        @Override
        public void deserialize(ConsumerRecord<byte[], byte[]> message, Collector<byte[][]> to) {
            to.collect(new byte[][] {message.key(), message.value()});
        }

        @Override
        public TypeInformation<byte[][]> getProducedType() {
            return TypeInformation.of(byte[][].class);
        }
    }
}
