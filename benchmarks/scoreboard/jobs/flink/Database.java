import java.net.URI;
import javax.sql.XADataSource;
import org.apache.flink.connector.jdbc.JdbcExactlyOnceOptions;
import org.apache.flink.connector.jdbc.JdbcExecutionOptions;
import org.postgresql.xa.PGXADataSource;

/** The options that the documentation of the JDBC connector gives for PostgreSQL. */
final class Database {
    static final String INSERT = "INSERT INTO out (id, amount) VALUES (?, ?)";

    private Database() {}

    static JdbcExecutionOptions execution() {
        return JdbcExecutionOptions.builder().withMaxRetries(0).build();
    }

    static JdbcExactlyOnceOptions exactlyOnce() {
        return JdbcExactlyOnceOptions.builder().withTransactionPerConnection(true).build();
    }

    static XADataSource source() {
        URI address = URI.create(System.getenv("DATABASE_URL"));
        String[] login = address.getUserInfo().split(":", 2);
        PGXADataSource source = new PGXADataSource();
        source.setUrl("jdbc:postgresql://" + address.getHost() + ":" + address.getPort() + address.getPath());
        source.setUser(login[0]);
        source.setPassword(login[1]);
        return source;
    }
}
