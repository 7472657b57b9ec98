//! Front ends come, stay alone, and go.

use super::*;
use std::time::Instant;

#[test]
fn a_server_serves_one_front_end_after_the_other() {
    let port = Port::server(1);
    let mut guest = port.connect(one_pair());
    for n in 1..=3 {
        exchange(&port, &mut guest, 1, 5);
        guest.disconnect();
        let now = port.wait_gone(n);
        assert_eq!((now.features, now.queue_pairs), (0, 0));
        assert_eq!((now.protocol_errors, now.last_error), (0, None));
        let last = port.events().pop().unwrap();
        assert_eq!(last, "disconnect: the front end closed the connection");
        guest.reconnect().unwrap();
        let base = n * 5;
        let start = format!("start 1 size 64 base {base} kick true call true");
        assert!(port.events().contains(&start));
    }
    exchange(&port, &mut guest, 1, 5);
    // Another one, with memory of its own.
    drop(guest);
    port.wait_gone(4);
    exchange(&port, &mut port.connect(one_pair()), 1, 5);
}

#[test]
fn a_client_asks_for_the_next_stream() {
    let (port, theirs) = Port::client();
    let mut guest = FrontEnd::from_stream(theirs, one_pair()).unwrap();
    exchange(&port, &mut guest, 1, 5);
    let (_, unwanted) = UnixStream::pair().unwrap();
    let refused = port.thread.attach(unwanted.into()).unwrap_err();
    assert!(refused.to_string().contains("has a front end already"));
    for n in 1..=2 {
        guest.disconnect();
        port.wait_gone(n);
        let (theirs, ours) = UnixStream::pair().unwrap();
        port.thread.attach(ours.into()).unwrap();
        guest.attach(theirs).unwrap();
        exchange(&port, &mut guest, 1, 5);
    }
}

#[test]
fn a_third_front_end_is_refused_and_the_first_not_disturbed() {
    let port = Port::server(1);
    let mut guest = port.connect(one_pair());
    let _second = port.dial();
    port.wait(|now| now.heir);
    for n in 1..=2 {
        assert!(FrontEnd::connect(&port.path, one_pair()).is_err());
        port.wait(|now| now.refused == n);
    }
    exchange(&port, &mut guest, 1, 5);
    let now = port.status.snapshot();
    assert_eq!((now.connects, now.state), (1, State::Ready));
}

#[test]
fn stopping_disconnects_and_unserves() {
    let port = Port::server(1);
    let guest = port.connect(one_pair());
    port.thread.stop();
    let last = port.device.lock().unwrap().events.pop();
    assert_eq!(last.as_deref(), Some("disconnect: the port was stopped"));
    let mut raw = guest.stream().unwrap();
    assert_eq!(raw.read(&mut [0]).unwrap(), 0);
    // Its socket is closed by an errand.
    let start = std::time::Instant::now();
    while UnixStream::connect(&port.path).is_ok() {
        assert!(start.elapsed() < PATIENCE);
    }
}

/// Its objects take long to close: until then the port's thread waits without polling.
#[test]
fn a_front_end_that_hung_up_with_much_to_close_keeps_no_cpu() {
    let config = PortConfig::new("overloaded", 1);
    let errands = config.errands.clone();
    let port = Port::server_with(config);
    let mut stream = port.dial();
    port.wait(|now| now.connects == 1);
    let (done, slow) = mpsc::channel::<()>();
    errands.give_up(Slow(slow));
    (0..100).for_each(|_| errands.give_up(()));
    let busy = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let task = tasks
            .map(|task| task.unwrap().path())
            .find(|task| {
                std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "port overloaded\n")
            })
            .unwrap();
        // The first number is its CPU time (ns).
        let stat = std::fs::read_to_string(task.join("schedstat")).unwrap();
        stat.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    // It wakes the port's thread, which answers, and then sees the backlog. There is no answer if the
    // thread was still awake, and saw that before.
    stream.write_all(&message(FrontendReq::GET_FEATURES, 1, &[])).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let _ = stream.read(&mut [0; 20]);
    std::thread::sleep(Duration::from_millis(100));
    drop(stream);
    std::thread::sleep(Duration::from_millis(100));
    let before = busy();
    std::thread::sleep(Duration::from_secs(1));
    let ran = busy() - before;
    drop(done);
    assert!(ran < 200_000_000, "it ran for {} ms of a second", ran / 1_000_000);
    port.wait_gone(1);
}

/// Counted, not timed: a thread that polls would switch some 200 times.
#[test]
fn an_idle_port_does_not_run() {
    let port = Port::server_with(PortConfig::new("idle", 1));
    let _guest = port.connect(one_pair());
    std::thread::sleep(Duration::from_millis(50));
    let before = switches("port idle");
    std::thread::sleep(Duration::from_secs(1));
    let after = switches("port idle");
    assert!(after - before < 20, "{} wake-ups", after - before);
}

#[test]
fn queue_pairs_out_of_range_are_refused() {
    for queue_pairs in [0, 129] {
        let (_, ours) = UnixStream::pair().unwrap();
        let spawned = PortThread::spawn(
            PortConfig::new("test", queue_pairs),
            SocketEnd::Stream(ours.into()),
            Box::new(Arc::new(Mutex::new(Device::default()))),
            Arc::default(),
        );
        assert!(spawned.unwrap_err().to_string().contains("expected 1 to 128"));
    }
}

/// A front end that leaves at once, and one that sends garbage.
const LEAVES: fn(UnixStream) = drop;
const LIES: fn(UnixStream) = |mut stream| {
    stream.write_all(&[0xff; 64]).unwrap();
    let _ = stream.read_to_end(&mut Vec::new());
};

#[test]
fn front_ends_without_end_are_served_slowly() {
    for (ends, wrong) in [(LEAVES, 0), (LIES, 20)] {
        let port = Port::server(1);
        let start = Instant::now();
        (0..20).for_each(|_| ends(port.dial()));
        let now = port.wait_gone(20);
        // 40 a second, and no pause before the first.
        assert!(start.elapsed() >= Duration::from_millis(19 * 25), "20 within {:?}", start.elapsed());
        assert_eq!((now.protocol_errors, now.refused), (wrong, 0));
        assert_serves(&port);
    }
}

/// It waits, and the next that comes with it. One that has stayed for a while and leaves may reconnect at
/// once.
#[test]
fn a_front_end_that_was_thrown_out_waits() {
    let shortest = |ends: fn(UnixStream)| {
        let port = Port::server(1);
        let mut stream = port.dial();
        let again = (1..=10).map(|n| {
            port.wait(|now| now.connects == n && now.state == State::Connected);
            std::thread::sleep(Duration::from_millis(30));
            let end = Instant::now();
            ends(std::mem::replace(&mut stream, UnixStream::pair().unwrap().0));
            stream = port.dial();
            port.wait(|now| now.connects > n);
            end.elapsed()
        });
        again.min().expect("ten")
    };
    let (left, lied) = (shortest(LEAVES), shortest(LIES));
    assert!(left * 2 < lied, "one that left waited for {left:?}, one that lied for {lied:?}");
}
