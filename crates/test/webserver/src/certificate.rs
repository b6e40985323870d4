//! A self-signed certificate for loopback.

use std::{
    io::{self, Write},
    path::Path,
    sync::Arc,
};

use rustls::ServerConfig;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// A certificate and its key.
#[derive(Debug)]
pub struct Certificate {
    der: CertificateDer<'static>,
    pem: String,
    key: PrivateKeyDer<'static>,
}

impl Default for Certificate {
    fn default() -> Self {
        Self::new()
    }
}

impl Certificate {
    /// A new certificate for `localhost` and `127.0.0.1`.
    pub fn new() -> Self {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).expect("the names are proper");
        Self {
            der: made.cert.der().clone(),
            pem: made.cert.pem(),
            key: PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into()),
        }
    }

    /// Writes it as PEM to a file that clients can trust.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        std::fs::File::create(path)?.write_all(self.pem.as_bytes())
    }

    /// The configuration of a server that uses it.
    pub fn server_config(&self) -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has suites for the default versions")
            .with_no_client_auth()
            .with_single_cert(vec![self.der.clone()], self.key.clone_key());
        Arc::new(config.expect("the key is the certificate's"))
    }
}
