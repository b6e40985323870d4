//! An S3 server for tests: SeaweedFS, or another server given by the environment.

use std::{
    fs, io,
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::Path,
    pin::pin,
    process::{Child, Command, Stdio},
    sync::OnceLock,
    task::{Context as Task, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use http::{Method, Request};
use reqsign_aws_v4::{Credential, RequestSigner};
use reqsign_core::{Context, SignRequest};
use tempfile::TempDir;

/// The start timeout. On an idle machine the server starts in two seconds.
const START_MAX: Duration = Duration::from_secs(90);

/// Kills the server when the other end of the pipe is closed, which happens at any exit of the test's process. Its data
/// is deleted with it, so a clean shutdown is not needed. After SIGTERM, a server with a full drive searches for space
/// for minutes.
const KEEPER: &str = r#""$@" & pid=$!; cat >/dev/null; kill -9 $pid; wait $pid"#;

/// A server with one bucket, `lab`.
#[derive(Debug)]
pub struct S3Server {
    address: String,
    /// Its process and its data; `None` for a server that was already running.
    process: Option<(TempDir, Child)>,
}

/// The minimum free space on the drive. The default of SeaweedFS refuses writes when less than 1% is free.
const FREE_USUAL: &str = "64MiB";

/// A minimum that makes the drive count as full: 100%.
const FREE_ALL: &str = "100";

/// The environment variable with the address of another S3 server, `HOST:PORT`. It must accept the keys below.
const OTHER: &str = "STRAIGHTWAY_S3_SERVER";

impl S3Server {
    /// The existing bucket.
    pub const BUCKET: &'static str = "lab";
    /// An access key ID with all permissions.
    pub const ACCESS_KEY_ID: &'static str = "LABACCESSKEYID";
    /// Its secret.
    pub const SECRET_ACCESS_KEY: &'static str = "lab-secret-access-key";
    /// An access key ID with read permission only.
    pub const READER_ACCESS_KEY_ID: &'static str = "LABREADERKEYID";
    /// Its secret.
    pub const READER_SECRET_ACCESS_KEY: &'static str = "lab-reader-secret-access-key";

    /// The server of this process, started on first use. If it is unavailable, every call prints the reason, so that
    /// each test that needs the server counts as skipped, and returns `None`.
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<io::Result<S3Server>> = OnceLock::new();
        let shared = SHARED.get_or_init(Self::start).as_ref();
        #[expect(clippy::print_stderr, reason = "skipped tests are counted by this line")]
        let shared = shared.inspect_err(|error| eprintln!("skipped: no S3 server: {error}"));
        shared.ok()
    }

    /// Starts a server, or uses the one given by the environment.
    pub fn start() -> io::Result<Self> {
        if let Ok(address) = std::env::var(OTHER) {
            let mut other = Self { address, process: None };
            other.wait_until_ready()?;
            return Ok(other);
        }
        Self::start_seaweed(FREE_USUAL)
    }

    /// Starts SeaweedFS on a drive that counts as full: it refuses every object.
    pub fn start_full() -> io::Result<Self> {
        Self::start_seaweed(FREE_ALL)
    }

    fn start_seaweed(free: &str) -> io::Result<Self> {
        let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tools/weed");
        let found = Command::new(tool).stderr(Stdio::piped()).output()?;
        if !found.status.success() {
            return Err(io::Error::other(
                String::from_utf8_lossy(&found.stderr).trim().to_owned(),
            ));
        }
        let program = String::from_utf8_lossy(&found.stdout).trim().to_owned();
        let mut last = io::Error::other("no free ports");
        // Another process may take a port between the check and the start.
        for _ in 0..3 {
            match Self::start_with(&program, free) {
                Ok(weed) => return Ok(weed),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn start_with(program: &str, free: &str) -> io::Result<Self> {
        let folder = TempDir::new()?;
        let data = folder.path().display();
        let identities = folder.path().join("s3.json");
        let identity = |name: &str, id: &str, secret: &str, actions: &str| {
            format!(
                r#"{{"name":"{name}","credentials":[{{"accessKey":"{id}","secretKey":"{secret}"}}],"actions":[{actions}]}}"#
            )
        };
        let all = r#""Admin","Read","Write","List","Tagging""#;
        let lab = identity("lab", Self::ACCESS_KEY_ID, Self::SECRET_ACCESS_KEY, all);
        let (id, secret) = (Self::READER_ACCESS_KEY_ID, Self::READER_SECRET_ACCESS_KEY);
        let reader = identity("reader", id, secret, r#""Read","List""#);
        fs::write(&identities, format!(r#"{{"identities":[{lab},{reader}]}}"#))?;
        let ports = free_ports()?;
        let log = fs::File::create(folder.path().join("log"))?;
        let arguments = [
            "server".to_owned(),
            format!("-dir={data}"),
            "-ip=127.0.0.1".to_owned(),
            "-ip.bind=127.0.0.1".to_owned(),
            "-master.volumeSizeLimitMB=1024".to_owned(),
            "-volume.max=32".to_owned(),
            format!("-volume.minFreeSpace={free}"),
            format!("-master.port={}", ports[0]),
            format!("-volume.port={}", ports[1]),
            "-filer".to_owned(),
            format!("-filer.port={}", ports[2]),
            "-s3".to_owned(),
            format!("-s3.port={}", ports[3]),
            // Two more listeners have fixed ports, which would conflict with a second server.
            "-s3.port.iceberg=0".to_owned(),
            "-s3.port.lance=0".to_owned(),
            format!("-s3.config={}", identities.display()),
        ];
        let keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper", program])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let mut weed = Self {
            address: format!("127.0.0.1:{}", ports[3]),
            process: Some((folder, keeper)),
        };
        weed.wait_until_ready()?;
        Ok(weed)
    }

    fn wait_until_ready(&mut self) -> io::Result<()> {
        let start = Instant::now();
        loop {
            let made =
                TcpStream::connect(&self.address).and_then(|_| self.send(Method::PUT, Self::BUCKET, &[], Vec::new()));
            match made {
                Ok(status) if status < 300 => return Ok(()),
                _ if self.has_ended()? || start.elapsed() > START_MAX => {
                    let log = self.process.as_ref().map(|(folder, _)| folder.path().join("log"));
                    let log = log.and_then(|log| fs::read_to_string(log).ok());
                    let log = log.unwrap_or_default();
                    let last = log.lines().last().unwrap_or("it wrote no log").to_owned();
                    return Err(io::Error::other(format!("the S3 server did not start: {last}")));
                }
                _ => thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    fn has_ended(&mut self) -> io::Result<bool> {
        match &mut self.process {
            Some((_, keeper)) => Ok(keeper.try_wait()?.is_some()),
            None => Ok(false),
        }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// Its address.
    pub fn address(&self) -> String {
        self.address.clone()
    }

    /// Makes another bucket with headers, for example for object lock. Returns the status.
    pub fn make_bucket(&self, name: &str, headers: &[(&str, &str)]) -> u16 {
        self.send(Method::PUT, name, headers, Vec::new())
            .expect("the server runs")
    }

    /// Stores an object. The target is its URL-encoded key.
    pub fn put(&self, target: &str, content: impl Into<Vec<u8>>) {
        let status = self
            .send_object(Method::PUT, target, &[], content.into())
            .expect("the server runs");
        assert!(status < 300, "PUT {target}: {status}");
    }

    /// Stores an object with headers, for example a checksum.
    pub fn put_with(&self, target: &str, headers: &[(&str, &str)], content: impl Into<Vec<u8>>) -> u16 {
        self.send_object(Method::PUT, target, headers, content.into())
            .expect("the server runs")
    }

    /// A header of an object from a HEAD request with checksums enabled.
    pub fn header_of(&self, target: &str, name: &str) -> Option<String> {
        let target = format!("{}/{target}", Self::BUCKET);
        let mode = [("x-amz-checksum-mode", "ENABLED")];
        let answer = self.ask(Method::HEAD, &target, &mode, Vec::new());
        let answer = answer.expect("the server runs");
        let value = answer.headers().get(name)?;
        value.to_str().ok().map(str::to_owned)
    }

    /// Removes an object.
    pub fn delete(&self, target: &str) {
        self.send_object(Method::DELETE, target, &[], Vec::new())
            .expect("the server runs");
    }

    /// Sends a request for an object of the bucket.
    fn send_object(&self, method: Method, target: &str, headers: &[(&str, &str)], body: Vec<u8>) -> io::Result<u16> {
        let target = format!("{}/{target}", Self::BUCKET);
        self.send(method, &target, headers, body)
    }

    fn send(&self, method: Method, target: &str, headers: &[(&str, &str)], body: Vec<u8>) -> io::Result<u16> {
        let answer = self.ask(method, target, headers, body)?;
        Ok(answer.status().as_u16())
    }

    fn ask(
        &self,
        method: Method,
        target: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> io::Result<http::Response<ureq::Body>> {
        let uri = format!("{}/{target}", self.url());
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (mut parts, body) = request.body(body).map_err(io::Error::other)?.into_parts();
        let credential = Credential {
            access_key_id: Self::ACCESS_KEY_ID.to_owned(),
            secret_access_key: Self::SECRET_ACCESS_KEY.to_owned(),
            session_token: None,
            expires_in: None,
        };
        let signer = RequestSigner::new("s3", "us-east-1");
        let context = Context::new();
        {
            let mut signing = pin!(signer.sign_request(&context, &mut parts, Some(&credential), None));
            let polled = signing.as_mut().poll(&mut Task::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Ready(Ok(()))), "signing does not block");
        }
        agent().run(Request::from_parts(parts, body)).map_err(io::Error::other)
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        if let Some((_, keeper)) = &mut self.process {
            drop(keeper.stdin.take());
            // Its open files are removed with the folder.
            let _ = keeper.wait();
        }
    }
}

fn agent() -> &'static ureq::Agent {
    static AGENT: OnceLock<ureq::Agent> = OnceLock::new();
    AGENT.get_or_init(|| {
        let config = ureq::Agent::config_builder().http_status_as_error(false).proxy(None);
        config.build().new_agent()
    })
}

/// Free ports. The ports 10,000 above them are free too: SeaweedFS uses them internally.
fn free_ports() -> io::Result<[u16; 4]> {
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let mut free = Vec::new();
    for _ in 0..1000 {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        // Below the ephemeral range of the kernel, so that no other test takes one meanwhile.
        let port = 12_000 + port % 10_000;
        if is_free(port) && is_free(port + 10_000) && !free.contains(&port) {
            free.push(port);
        }
        if let Ok(ports) = free.as_slice().try_into() {
            return Ok(ports);
        }
    }
    Err(io::Error::other("no free ports"))
}
