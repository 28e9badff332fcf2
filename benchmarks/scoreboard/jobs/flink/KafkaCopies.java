import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Into topics, by KafkaSink, exactly once. */
public final class KafkaCopies {
    public static void main(String[] arguments) throws Exception {
        Copies.run(
                (rows, topic) -> {
                    KafkaRecordSerializationSchema<byte[][]> copied =
                            (row, context, time) -> new ProducerRecord<>(topic, row[0], row[1]);
                    rows.sinkTo(
                            KafkaSink.<byte[][]>builder()
                                    .setBootstrapServers(System.getenv("KAFKA_BOOTSTRAP_SERVERS"))
                                    .setRecordSerializer(copied)
                                    .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                                    .setTransactionalIdPrefix(topic)
                                    .setProperty("transaction.timeout.ms", "600000")
                                    .build());
                });
    }
}
