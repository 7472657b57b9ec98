//! Contracts: whatever is read without error is written and read again as the same.

use tidegate_contract::{Document, parse};

/// Reads `data` as a file of contracts.
///
/// # Panics
/// Where a contract changes by being written, or an error names no place that is there.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match parse(text, "fuzz") {
        Ok(document) => round_trip(&document),
        Err(errors) => {
            assert!(!errors.0.is_empty(), "an error that names nothing");
            let lines = text.split('\n').count();
            for error in &errors.0 {
                assert!(error.line <= lines, "line {} of {lines}: {error:?}", error.line);
                assert!(!error.message.is_empty(), "{error:?}");
                assert_eq!(error.line == 0, error.column == 0, "{error:?}");
            }
            // As it is shown.
            let _ = errors.to_string();
        }
    }
}

fn round_trip(document: &Document) {
    for vnic in &document.vnics {
        let text = vnic.value.to_toml();
        let again = parse(&text, "written").unwrap_or_else(|errors| panic!("{errors}\n{text}"));
        assert_eq!(again.vnics.len(), 1, "{text}");
        assert_eq!(again.vnics[0].value, vnic.value, "{text}");
    }
    if let Some(host) = &document.host {
        let text = host.value.to_toml();
        let again = parse(&text, "written").unwrap_or_else(|errors| panic!("{errors}\n{text}"));
        assert_eq!(again.host.map(|host| host.value).as_ref(), Some(&host.value), "{text}");
    }
}
