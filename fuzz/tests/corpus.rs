//! Every input that is kept is run once: what was found stays fixed, on any compiler.

use std::path::Path;

#[test]
fn no_input_that_is_kept_fails() {
    for (name, run) in tidegate_fuzz::TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
        let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
        let paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        assert!(paths.len() >= 4, "{folder:?} holds {} inputs", paths.len());
        for path in paths {
            // Said where it fails.
            println!("{}", path.display());
            run(&std::fs::read(&path).unwrap());
        }
    }
}
