import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** KafkaSink, exactly once. */
public final class KafkaJob {
    public static void main(String[] arguments) throws Exception {
        StreamExecutionEnvironment environment = Common.environment();
        KafkaSink<String> sink =
                KafkaSink.<String>builder()
                        .setBootstrapServers(Common.SERVERS)
                        .setRecordSerializer(
                                KafkaRecordSerializationSchema.builder()
                                        .setTopic("out")
                                        .setValueSerializationSchema(new SimpleStringSchema())
                                        .build())
                        .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                        .setTransactionalIdPrefix(Common.NAME)
                        .setProperty("transaction.timeout.ms", "600000")
                        .build();
        Common.orders(environment).sinkTo(sink).uid("out");
        environment.execute();
    }
}
