//! The real llama-server, where there is one.

use std::path::PathBuf;

/// A llama-server and two tiny models beside it.
#[derive(Clone, Debug)]
pub(crate) struct Llama {
    pub(crate) server: PathBuf,
    pub(crate) models: [PathBuf; 2],
}

/// Finds it through `LLAMA_SERVER`, else on `PATH`. Without it the calling test has nothing to test and says so.
pub(crate) fn llama() -> Option<Llama> {
    let named = std::env::var_os("LLAMA_SERVER").map(PathBuf::from);
    let on_path = || {
        std::env::split_paths(&std::env::var_os("PATH")?)
            .map(|dir| dir.join("llama-server"))
            .find(|file| file.is_file())
    };
    let found = named.or_else(on_path).and_then(|server| {
        let server = server.canonicalize().ok()?;
        let models = ["tiny-a.gguf", "tiny-b.gguf"].map(|file| server.with_file_name(file));
        models.iter().all(|model| model.is_file()).then_some(Llama { server, models })
    });
    if found.is_none() {
        eprintln!(
            "SKIPPED: no llama-server with tiny-a.gguf and tiny-b.gguf beside it; name one in LLAMA_SERVER to run this test"
        );
    }
    found
}
