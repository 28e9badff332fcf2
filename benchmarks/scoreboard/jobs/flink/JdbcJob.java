import org.apache.flink.connector.jdbc.core.datastream.sink.JdbcSink;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/** JdbcSink with buildExactlyOnce of the connector for Flink 2. */
public final class JdbcJob {
    public static void main(String[] arguments) throws Exception {
        StreamExecutionEnvironment environment = Common.environment();
        JdbcSink<String> sink =
                JdbcSink.<String>builder()
                        .withExecutionOptions(Database.execution())
                        .withQueryStatement(
                                Database.INSERT,
                                (statement, row) -> {
                                    long[] values = Common.parsed(row);
                                    statement.setLong(1, values[0]);
                                    statement.setLong(2, values[1]);
                                })
                        .buildExactlyOnce(Database.exactlyOnce(), Database::source);
        Common.orders(environment).sinkTo(sink).uid("out");
        environment.execute();
    }
}
