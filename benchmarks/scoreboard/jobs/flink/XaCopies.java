import static java.nio.charset.StandardCharsets.UTF_8;

import javax.sql.XADataSource;
import org.apache.flink.connector.jdbc.JdbcExecutionOptions;
import org.apache.flink.connector.jdbc.JdbcSink;
import org.postgresql.xa.PGXADataSource;

/** Into tables, by JdbcSink.exactlyOnceSink of the connector for Flink 1.20. */
public final class XaCopies {
    public static void main(String[] arguments) throws Exception {
        JdbcExecutionOptions batches =
                JdbcExecutionOptions.builder().withMaxRetries(0).withBatchSize(10_000).build();
        Copies.run(
                (rows, table) ->
                        rows.addSink(
                                JdbcSink.exactlyOnceSink(
                                        "INSERT INTO " + table + " (key, value) VALUES (?, ?)",
                                        (statement, row) -> {
                                            statement.setString(1, new String(row[0], UTF_8));
                                            statement.setString(2, new String(row[1], UTF_8));
                                        },
                                        batches,
                                        Database.exactlyOnce(),
                                        XaCopies::source)));
    }

    private static XADataSource source() {
        PGXADataSource source = (PGXADataSource) Database.source();
        source.setReWriteBatchedInserts(true);
        return source;
    }
}
