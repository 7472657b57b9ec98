//! The examples of `controller/openapi.json` are read into the types, and written as they were.

use super::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeSet;

const DEFINITION: &str = include_str!("../../../controller/openapi.json");

fn is_kept<T: Serialize + DeserializeOwned>(example: &Value) {
    let read: T = serde_json::from_value(example.clone()).expect("an example is of its type");
    assert_eq!(&serde_json::to_value(read).unwrap(), example);
}

#[test]
fn examples_are_kept() {
    let definition: Value = serde_json::from_str(DEFINITION).unwrap();
    let mut seen = BTreeSet::new();
    for (name, schema) in definition["components"]["schemas"].as_object().unwrap() {
        for example in schema["examples"].as_array().into_iter().flatten() {
            seen.insert(name.as_str());
            match name.as_str() {
                "Registration" => is_kept::<Registration>(example),
                "View" => is_kept::<View>(example),
                "PathRequest" => is_kept::<PathRequest>(example),
                "Path" => is_kept::<Path>(example),
                "Paths" => is_kept::<Paths>(example),
                "Misses" => is_kept::<Misses>(example),
                "Hosts" => is_kept::<Hosts>(example),
                "Topology" => is_kept::<Topology>(example),
                "Decisions" => is_kept::<Decisions>(example),
                "Enrolment" => is_kept::<Enrolment>(example),
                "Enrolled" => is_kept::<Enrolled>(example),
                "SegmentKeys" => is_kept::<SegmentKeys>(example),
                "Problem" => is_kept::<Problem>(example),
                "Health" => is_kept::<Health>(example),
                other => panic!("no type for the example of {other}"),
            }
        }
    }
    assert_eq!(seen.len(), 14, "{seen:?}");
}
