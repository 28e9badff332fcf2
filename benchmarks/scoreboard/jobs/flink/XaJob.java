import org.apache.flink.connector.jdbc.JdbcSink;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** JdbcSink.exactlyOnceSink of the connector for Flink 1.20. */
public final class XaJob {
    public static void main(String[] arguments) throws Exception {
        StreamExecutionEnvironment environment = Common.environment();
        Common.orders(environment)
                .addSink(
                        JdbcSink.exactlyOnceSink(
                                Database.INSERT,
                                (statement, row) -> {
                                    long[] values = Common.parsed(row);
                                    statement.setLong(1, values[0]);
                                    statement.setLong(2, values[1]);
                                },
                                Database.execution(),
                                Database.exactlyOnce(),
                                Database::source))
                .uid("out");
        environment.execute();
    }
}
