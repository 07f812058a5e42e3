//! Where the log's rows are: a SQLite database, in a file or in memory.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior, ffi};

/// Marks a database as an activity log: "SwYd".
const APPLICATION_ID: i32 = 0x5377_5964;
/// How long a connection waits for another to finish with the database.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Each leads from the format of its index to the next; `user_version` counts those applied. Only ever append.
const MIGRATIONS: &[&str] = &[
    "
    CREATE TABLE activity (
        row INTEGER PRIMARY KEY,
        id TEXT NOT NULL,
        seq INTEGER NOT NULL,
        arrived_ms INTEGER NOT NULL,
        dispatched_ms INTEGER,
        ended_ms INTEGER NOT NULL,
        path TEXT NOT NULL,
        model TEXT NOT NULL,
        tenant TEXT,
        serial_priority INTEGER NOT NULL,
        serial_band TEXT NOT NULL,
        serial_score REAL NOT NULL,
        serial_queue_wait_ms INTEGER NOT NULL,
        affinity INTEGER NOT NULL,
        aging REAL NOT NULL,
        model_priority INTEGER NOT NULL,
        swap_ms INTEGER,
        passed_by_aging INTEGER,
        passed_by_affinity INTEGER,
        outcome TEXT NOT NULL,
        status INTEGER NOT NULL,
        first_byte_ms INTEGER,
        duration_ms INTEGER NOT NULL,
        stream INTEGER NOT NULL,
        prompt_tokens INTEGER,
        completion_tokens INTEGER,
        request_bytes INTEGER NOT NULL,
        response_bytes INTEGER NOT NULL,
        error TEXT
    ) STRICT;
    CREATE INDEX activity_id ON activity (id);
    CREATE INDEX activity_dispatched ON activity (dispatched_ms);
    CREATE INDEX activity_ended ON activity (ended_ms);
",
    "
    ALTER TABLE activity ADD COLUMN tier TEXT;
",
    "
    ALTER TABLE activity ADD COLUMN replica INTEGER;
    ALTER TABLE activity ADD COLUMN fairness TEXT;
    ALTER TABLE activity ADD COLUMN fairness_ahead REAL;
    ALTER TABLE activity ADD COLUMN saturation REAL;
    ALTER TABLE activity ADD COLUMN ceiling REAL;
",
    "
    ALTER TABLE activity ADD COLUMN unread_priority TEXT;
",
];

/// The activity log cannot be opened; says which file, why, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("cannot keep the activity log in {}: {reason}", .path.display())]
pub struct OpenError {
    /// The file, as `store.path` has it.
    pub path: PathBuf,
    /// Why, and the cure.
    pub reason: String,
}

/// Where the database is.
#[derive(Clone, Debug)]
pub(super) enum Location {
    File(PathBuf),
    /// The name of a database that lives as long as any connection to it.
    Memory(String),
}

impl Location {
    pub(super) fn new(path: Option<&Path>) -> Self {
        match path {
            Some(path) => Self::File(path.to_owned()),
            None => Self::Memory(format!("file:/switchyard-{}?vfs=memdb", uuid::Uuid::now_v7())),
        }
    }

    /// Opens for writing, creates what is missing, and brings an older format up to date.
    pub(super) fn open_writer(&self) -> Result<Connection, OpenError> {
        let (path, opened) = match self {
            Self::File(path) => (path.clone(), open_file(path)),
            Self::Memory(uri) => (PathBuf::from(":memory:"), open_memory(uri).map_err(|error| error.to_string())),
        };
        opened.map_err(|reason| OpenError { path, reason })
    }

    /// Opens for reading only.
    pub(super) fn open_reader(&self) -> rusqlite::Result<Connection> {
        let connection = match self {
            Self::File(path) => Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?,
            Self::Memory(uri) => {
                Connection::open_with_flags(uri, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_URI)?
            }
        };
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.pragma_update(None, "query_only", true)?;
        Ok(connection)
    }
}

fn open_memory(uri: &str) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(uri, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    migrate(&mut connection, 0)?;
    Ok(connection)
}

fn open_file(path: &Path) -> Result<Connection, String> {
    if path.is_dir() {
        return Err("that is a folder; name a file in it in store.path".to_owned());
    }
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(|error| format!("its folder cannot be created: {error}"))?;
    }
    let (mut connection, version) = open_own(path).map_err(|error| match (error.sqlite_error_code(), error) {
        (Some(ErrorCode::NotADatabase), _) => {
            "the file is not a SQLite database; move it away or choose another store.path".to_owned()
        }
        (Some(ErrorCode::ReadOnly), _) => "the file cannot be written; change its permissions".to_owned(),
        (Some(ErrorCode::CannotOpen), error) => match std::fs::OpenOptions::new().append(true).open(path) {
            Err(io) if io.kind() != io::ErrorKind::NotFound => io.to_string(),
            _ => error.to_string(),
        },
        (_, error) => error.to_string(),
    })?;
    let Some(version) = version else {
        return Err("the file is another program's database; choose another store.path".to_owned());
    };
    if version > MIGRATIONS.len() {
        return Err(format!(
            "the file was written by a newer Switchyard (format {version}, this one knows {}); run that, or choose \
             another store.path",
            MIGRATIONS.len()
        ));
    }
    migrate(&mut connection, version).map_err(|error| match error.sqlite_error_code() {
        Some(ErrorCode::ReadOnly) => "the file cannot be written; change its permissions".to_owned(),
        _ => format!("its tables cannot be created: {error}"),
    })?;
    Ok(connection)
}

/// Opens a file that is new, or tells its format's version; no version when it is not ours.
fn open_own(path: &Path) -> rusqlite::Result<(Connection, Option<usize>)> {
    let connection = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    let application: i32 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    let ours = application == APPLICATION_ID || (application == 0 && version == 0 && tables == 0);
    if !ours {
        return Ok((connection, None));
    }
    // With a write-ahead log readers never wait for the writer, and a commit needs no fsync: a power cut may cost the
    // last rows, never the file.
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "normal")?;
    connection.pragma_update(None, "journal_size_limit", 16 << 20)?;
    Ok((connection, Some(usize::try_from(version).unwrap_or(usize::MAX))))
}

fn migrate(connection: &mut Connection, from: usize) -> rusqlite::Result<()> {
    // Taken even when there is nothing to do: it fails for a file that cannot be written.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for migration in &MIGRATIONS[from..] {
        transaction.execute_batch(migration)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", MIGRATIONS.len())?;
    transaction.commit()
}

/// Whether a write may succeed later without anything being done about its rows.
pub(super) fn may_pass(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|error| {
        !matches!(error.extended_code & 0xff, ffi::SQLITE_TOOBIG | ffi::SQLITE_CONSTRAINT | ffi::SQLITE_MISMATCH)
    })
}

/// Whether the connection itself may be at fault, so that a new one is worth a try.
pub(super) fn needs_reopening(error: &rusqlite::Error) -> bool {
    !matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{super::record::COLUMNS, *};

    #[test]
    fn the_tables_columns_are_the_records_fields() {
        let connection = Location::new(None).open_writer().unwrap();
        let mut statement = connection.prepare("SELECT name FROM pragma_table_info('activity')").unwrap();
        let names: Vec<String> = statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        // Migrations append.
        let in_table: BTreeSet<&str> = names[1..].iter().map(String::as_str).collect();
        assert_eq!(in_table, COLUMNS.iter().copied().collect());
    }

    #[test]
    fn what_is_not_ours_is_refused_with_the_cure() {
        let folder = tempfile::tempdir().unwrap();
        let open = |path: &Path| Location::new(Some(path)).open_writer().unwrap_err().to_string();

        let path = folder.path().join("notes.txt");
        std::fs::write(&path, "not a database, but longer than a header".repeat(40)).unwrap();
        assert!(open(&path).contains("notes.txt: the file is not a SQLite database"), "{}", open(&path));

        let path = folder.path().join("other.db");
        Connection::open(&path).unwrap().execute_batch("CREATE TABLE t (a)").unwrap();
        assert!(open(&path).contains("another program's database"), "{}", open(&path));

        let path = folder.path().join("newer.db");
        Location::new(Some(&path)).open_writer().unwrap().pragma_update(None, "user_version", 99).unwrap();
        assert!(open(&path).contains("newer Switchyard (format 99"), "{}", open(&path));

        assert!(open(folder.path()).contains("that is a folder"), "{}", open(folder.path()));
        let path = folder.path().join("notes.txt/activity.db");
        assert!(open(&path).contains("its folder cannot be created"), "{}", open(&path));
    }

    #[test]
    fn a_file_is_created_with_its_folders_and_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/activity.db");
        for _ in 0..2 {
            let connection = Location::new(Some(&path)).open_writer().unwrap();
            let mode: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
            assert_eq!(mode, "wal");
        }
    }
}
