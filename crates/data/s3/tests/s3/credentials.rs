//! The sources of credentials, and their renewal.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use reqsign_core::time::Timestamp;
use straightway_s3::{CredentialSource, Environment, S3, S3Access};

use super::{
    network, open, read,
    server::{Reply, Server},
};

/// A server that accepts only requests signed with this access key id.
fn server_of(id: &'static str) -> Server {
    Server::start(move |_, request| {
        let signed = request.header("authorization").unwrap_or_default();
        if signed.contains(&format!("Credential={id}/")) {
            Reply::of_object(request, 2, "\"1\"", |_, _| b"ok".to_vec())
        } else {
            Reply::error(403, "AccessDenied")
        }
    })
}

#[track_caller]
fn reads_as(id: &'static str, pairs: &[(&str, &str)]) {
    reads_with(id, S3Access::of(Environment::of(pairs)));
}

#[track_caller]
fn reads_with(id: &'static str, access: S3Access) {
    let server = server_of(id);
    let access = S3Access {
        endpoint: Some(server.url()),
        ..access
    };
    let store = S3::new("lab", &access, &network()).unwrap();
    assert_eq!(read(&store, "x").unwrap(), b"ok");
}

#[test]
fn keys_come_from_the_environment_or_the_call() {
    let both = [("AWS_ACCESS_KEY_ID", "FROMENV"), ("AWS_SECRET_ACCESS_KEY", "secret")];
    reads_as("FROMENV", &both);
    reads_with(
        "FROMCALL",
        S3Access {
            environment: Environment::of(&both),
            ..S3Access::with_keys("", "FROMCALL", "s")
        },
    );
}

#[test]
fn keys_come_from_profiles_in_both_files() {
    let folder = tempfile::tempdir().unwrap();
    let credentials = folder.path().join("credentials");
    let config = folder.path().join("config");
    fs::write(
        &credentials,
        "[default]\naws_access_key_id = FROMDEFAULT\naws_secret_access_key = a\n\
         [work]\naws_access_key_id = FROMWORK\naws_secret_access_key = b\n",
    )
    .unwrap();
    fs::write(
        &config,
        "[profile lab]\naws_access_key_id = FROMCONFIG\naws_secret_access_key = c\nregion = eu-west-2\n",
    )
    .unwrap();
    let files = [
        ("AWS_SHARED_CREDENTIALS_FILE", credentials.to_str().unwrap()),
        ("AWS_CONFIG_FILE", config.to_str().unwrap()),
    ];
    reads_as("FROMDEFAULT", &files);
    reads_as("FROMWORK", &[&files[..], &[("AWS_PROFILE", "work")]].concat());
    // A profile named in the call takes precedence over the environment.
    let env = [("AWS_ACCESS_KEY_ID", "FROMENV"), ("AWS_SECRET_ACCESS_KEY", "secret")];
    let profile = Some("lab".to_owned());
    reads_with(
        "FROMCONFIG",
        S3Access {
            credentials: CredentialSource::Found { profile },
            ..S3Access::of(Environment::of(&[&files[..], &env[..]].concat()))
        },
    );
}

#[test]
fn the_region_and_endpoint_of_a_profile_are_used() {
    let server = Server::start(|_, request| {
        let signed = request.header("authorization").unwrap_or_default();
        assert!(signed.contains("/eu-west-2/s3/"), "{signed}");
        Reply::of_object(request, 2, "\"1\"", |_, _| b"ok".to_vec())
    });
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join(".aws")).unwrap();
    let config = format!(
        "[default]\naws_access_key_id = A\naws_secret_access_key = c\nregion = eu-west-2\nendpoint_url = {}\n",
        server.url()
    );
    fs::write(folder.path().join(".aws/config"), config).unwrap();
    let access = S3Access::of(Environment {
        home: Some(folder.path().to_owned()),
        ..Environment::default()
    });
    let store = S3::new("lab", &access, &network()).unwrap();
    assert_eq!(read(&store, "x").unwrap(), b"ok");
}

/// Temporary credentials in the format of AWS's services, valid until 2099.
fn temporary(id: &str) -> String {
    temporary_until(id, "2099-01-01T00:00:00Z")
}

/// The same, valid until a given time.
fn temporary_until(id: &str, expiration: &str) -> String {
    format!(
        r#"{{"Version": 1, "AccessKeyId": "{id}", "SecretAccessKey": "s", "Token": "t", "SessionToken": "t",
        "Code": "Success", "Expiration": "{expiration}"}}"#
    )
}

#[test]
fn keys_come_from_a_process() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("helper");
    fs::write(
        &program,
        format!("#!/bin/sh\ncat <<'E'\n{}\nE\n", temporary("FROMPROCESS")),
    )
    .unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let config = folder.path().join("config");
    fs::write(
        &config,
        format!("[default]\ncredential_process = {} --arg\n", program.display()),
    )
    .unwrap();
    reads_as("FROMPROCESS", &[("AWS_CONFIG_FILE", config.to_str().unwrap())]);
}

#[test]
fn keys_come_from_the_container() {
    let service = Server::start(|_, request| {
        assert_eq!(request.header("authorization"), Some("a-token"));
        Reply::new(200, &[], temporary("FROMCONTAINER"))
    });
    let url = format!("{}/credentials", service.url());
    let pairs = [
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", url.as_str()),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "a-token"),
    ];
    reads_as("FROMCONTAINER", &pairs);
}

#[test]
fn keys_come_from_the_instance() {
    let service = Server::start(|_, request| match (request.method.as_str(), request.target.as_str()) {
        ("PUT", "/latest/api/token") => Reply::new(200, &[], "imds-token"),
        (_, _) if request.header("x-aws-ec2-metadata-token") != Some("imds-token") => Reply::new(401, &[], ""),
        (_, "/latest/meta-data/iam/security-credentials/") => Reply::new(200, &[], "role"),
        (_, "/latest/meta-data/iam/security-credentials/role") => Reply::new(200, &[], temporary("FROMINSTANCE")),
        _ => Reply::new(404, &[], ""),
    });
    reads_as("FROMINSTANCE", &[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &service.url())]);
}

#[test]
fn a_cached_token_with_some_minutes_left_is_used_and_not_requested_for_every_read() {
    let given = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&given);
    let service = Server::start(move |_, _| {
        counted.fetch_add(1, Ordering::Relaxed);
        let expiration = Timestamp::now() + Duration::from_mins(5);
        let expiration = expiration.format_rfc3339_zulu();
        Reply::new(200, &[], temporary_until("SHORT", &expiration))
    });
    let server = server_of("SHORT");
    let url = format!("{}/credentials", service.url());
    let mut access = S3Access::of(Environment::of(&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", &url)]));
    access.endpoint = Some(server.url());
    let store = S3::new("lab", &access, &network()).unwrap();
    for name in ["x", "y", "z"] {
        assert_eq!(read(&store, name).unwrap(), b"ok");
    }
    assert_eq!(given.load(Ordering::Relaxed), 1);
}

#[test]
fn expired_tokens_are_renewed_and_the_request_is_sent_again() {
    let given = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&given);
    let service = Server::start(move |_, _| {
        let number = counted.fetch_add(1, Ordering::Relaxed);
        Reply::new(200, &[], temporary(&format!("KEY{number}")))
    });
    // The first token expires after the first request.
    let server = Server::start(|number, request| {
        let signed = request.header("authorization").unwrap_or_default();
        if number >= 1 && signed.contains("Credential=KEY0/") {
            return Reply::error(400, "ExpiredToken");
        }
        Reply::of_object(request, 2 << 20, "\"1\"", |from, to| vec![7; (to - from) as usize])
    });
    let url = format!("{}/credentials", service.url());
    let mut access = S3Access::of(Environment::of(&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", &url)]));
    access.endpoint = Some(server.url());
    let store = S3::new("lab", &access, &network()).unwrap();
    let opened = open(&store, "x").unwrap();
    assert_eq!(given.load(Ordering::Relaxed), 1);
    let mut bytes = vec![0; 100];
    opened.read_exact_at((2 << 20) - 100, &mut bytes).unwrap();
    assert_eq!(given.load(Ordering::Relaxed), 2, "renewed once");
    assert_eq!(server.requests(), 3);
}

#[test]
fn a_token_that_stays_expired_is_an_error_and_not_a_loop() {
    let server = Server::start(|_, _| Reply::error(400, "ExpiredToken"));
    let pairs = [
        ("AWS_ACCESS_KEY_ID", "ID"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_SESSION_TOKEN", "a-secret-token"),
    ];
    let mut access = S3Access::of(Environment::of(&pairs));
    access.endpoint = Some(server.url());
    let store = S3::new("lab", &access, &network()).unwrap();
    let error = open(&store, "x").unwrap_err();
    let text = format!("{error} {}", error.hint().unwrap());
    assert!(
        text.contains("session token from the environment has expired"),
        "{text}"
    );
    assert!(!text.contains("a-secret-token"));
    assert!(server.requests() < 10);
}

#[test]
fn without_credentials_the_hint_says_how_to_set_them() {
    let server = server_of("NONE");
    let mut access = S3Access::of(Environment::of(&[("AWS_EC2_METADATA_DISABLED", "true")]));
    access.endpoint = Some(server.url());
    let store = S3::new("lab", &access, &network()).unwrap();
    let error = open(&store, "x").unwrap_err();
    assert!(error.hint().unwrap().contains("AWS_ACCESS_KEY_ID"), "{error}");
    assert_eq!(server.requests(), 0);
}

#[test]
fn a_failing_process_is_named_without_its_output() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("helper");
    fs::write(&program, "#!/bin/sh\necho '{\"Version\": \"hush-secret\"}'\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let config = folder.path().join("config");
    fs::write(
        &config,
        format!("[default]\ncredential_process = {}\n", program.display()),
    )
    .unwrap();
    let access = S3Access::of(Environment::of(&[("AWS_CONFIG_FILE", config.to_str().unwrap())]));
    let store = S3::new("lab", &access, &network()).unwrap();
    let error = open(&store, "x").unwrap_err();
    assert!(error.to_string().contains("the profile's process failed"), "{error}");
    assert!(!format!("{error:?}").contains("hush"), "{error:?}");
}

/// A program with this text in a folder whose name has a blank, a quote and a backslash, and a configuration whose default
/// profile runs it by `line`. `PROGRAM` in it is the path of the program.
fn process(text: &str, line: impl Fn(&str) -> String) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let tools = folder.path().join(r#"my "tools" \here"#);
    fs::create_dir(&tools).unwrap();
    let program = tools.join("helper");
    fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let config = folder.path().join("config");
    let line = line(program.to_str().unwrap());
    fs::write(&config, format!("[default]\ncredential_process = {line}\n")).unwrap();
    let config = config.to_str().unwrap().to_owned();
    (folder, config)
}

#[test]
fn the_command_of_a_process_is_split_as_a_shell_splits_it() {
    let single = |path: &str| format!("'{path}' --name 'it is so' \"\" a\\ b");
    let double = |path: &str| {
        let path = path.replace('\\', r"\\").replace('"', r#"\""#);
        format!("\"{path}\" --name \"it is so\" '' a' 'b")
    };
    let bare = |path: &str| {
        let path = path.replace('\\', r"\\").replace('"', r#"\""#).replace(' ', r"\ ");
        format!("{path} --name it\\ is\\ so '' \"a b\"")
    };
    let lines: [&dyn Fn(&str) -> String; 3] = [&single, &double, &bare];
    for line in lines {
        // The program compares its arguments.
        let text = format!(
            "[ \"$#:$1:$2:$3:$4\" = '4:--name:it is so::a b' ] || exit 7\ncat <<'E'\n{}\nE",
            temporary("FROMWORDS")
        );
        let (_folder, config) = process(&text, line);
        reads_as("FROMWORDS", &[("AWS_CONFIG_FILE", &config)]);
    }
}

/// The error of an object that is opened with these variables.
fn failure(pairs: &[(&str, &str)]) -> String {
    let access = S3Access::of(Environment::of(pairs));
    let store = S3::new("lab", &access, &network()).unwrap();
    let error = open(&store, "x").unwrap_err();
    assert!(!format!("{error:?}").contains("hush"), "{error:?}");
    error.to_string()
}

#[test]
fn the_failure_of_a_process_names_its_cause() {
    let quoted = |path: &str| format!("'{path}'");
    let expired = temporary_until("OLD", "2001-01-01T00:00:00Z");
    for (text, causes) in [
        (
            "echo hush; echo first >&2; echo 'no such vault' >&2; exit 3".to_owned(),
            &["helper ended with exit status: 3", "`first / no such vault`"][..],
        ),
        (
            "echo hush; exit 1".to_owned(),
            &["exit status: 1", "wrote nothing to stderr"],
        ),
        ("kill -9 $$".to_owned(), &["signal: 9"]),
        ("echo hush".to_owned(), &["helper did not print a JSON object"]),
        ("echo '{\"Version\": 2}'".to_owned(), &["version 2"]),
        (
            format!("cat <<'E'\n{expired}\nE"),
            &["those of the profile's process have expired"],
        ),
    ] {
        let (_folder, config) = process(&text, quoted);
        let error = failure(&[("AWS_CONFIG_FILE", &config)]);
        for cause in causes {
            assert!(error.contains(cause), "{cause}: {error}");
        }
    }
    for (line, cause) in [
        (
            "/nonexistent/helper --token hush",
            "cannot run /nonexistent/helper: No such file",
        ),
        ("'/bin/echo hush", "a quote in it is not closed"),
    ] {
        let (_folder, config) = process("", |_| line.to_owned());
        let error = failure(&[("AWS_CONFIG_FILE", &config)]);
        assert!(error.contains(cause), "{error}");
    }
    // As the source of a role.
    let (folder, config) = process("echo 'no such vault' >&2; exit 3", quoted);
    let role = "[profile role]\nrole_arn = arn:aws:iam::123456789012:role/worker\nsource_profile = default\n";
    let both = fs::read_to_string(&config).unwrap() + role;
    fs::write(&config, both).unwrap();
    let error = failure(&[("AWS_CONFIG_FILE", &config), ("AWS_PROFILE", "role")]);
    assert!(
        error.contains("exit status: 3") && error.contains("no such vault"),
        "{error}"
    );
    drop(folder);
}

#[test]
fn roles_are_assumed_at_the_service_of_the_environment() {
    let sts = Server::start(|_, request| {
        let body = String::from_utf8_lossy(&request.body);
        let text = format!("{}{body}", request.target);
        let signed = request.header("authorization").unwrap_or_default();
        let (action, is_right) = if text.contains("AssumeRoleWithWebIdentity") {
            (
                "AssumeRoleWithWebIdentity",
                text.contains("WebIdentityToken=a-token") && signed.is_empty(),
            )
        } else {
            (
                "AssumeRole",
                signed.contains("Credential=BASEACCESSKEY123/") && signed.contains("/sts/"),
            )
        };
        if !is_right || !request.target.starts_with("/sts/") {
            return Reply::new(403, &[], "");
        }
        let credentials = "<Credentials><AccessKeyId>ASSUMEDACCESSKEY</AccessKeyId><SecretAccessKey>s</SecretAccessKey>\
                           <SessionToken>t</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>";
        Reply::new(
            200,
            &[],
            format!("<{action}Response><{action}Result>{credentials}</{action}Result></{action}Response>"),
        )
    });
    let folder = tempfile::tempdir().unwrap();
    let (token, config) = (folder.path().join("token"), folder.path().join("config"));
    fs::write(&token, "a-token").unwrap();
    fs::write(
        &config,
        "[profile base]\naws_access_key_id = BASEACCESSKEY123\naws_secret_access_key = b\n\
         [profile role]\nrole_arn = arn:aws:iam::123456789012:role/worker\nsource_profile = base\n",
    )
    .unwrap();
    let url = format!("{}/sts", sts.url());
    let endpoint = ("AWS_ENDPOINT_URL_STS", url.as_str());
    let files = ("AWS_CONFIG_FILE", config.to_str().unwrap());
    reads_as("ASSUMEDACCESSKEY", &[endpoint, files, ("AWS_PROFILE", "role")]);
    let identity = [
        ("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/worker"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", token.to_str().unwrap()),
    ];
    reads_as("ASSUMEDACCESSKEY", &[&[endpoint][..], &identity].concat());
    assert_eq!(sts.requests(), 2);
    // An unusable address is named if it is needed, and only then.
    let wrong = ("AWS_ENDPOINT_URL_STS", "hush.example");
    let error = failure(&[&[wrong][..], &identity].concat());
    assert!(error.contains("AWS_ENDPOINT_URL_STS"), "{error}");
    let keys = [("AWS_ACCESS_KEY_ID", "FROMENV"), ("AWS_SECRET_ACCESS_KEY", "secret")];
    reads_as("FROMENV", &[&[wrong][..], &keys].concat());
}
