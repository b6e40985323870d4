//! The trusted certificates, and the TLS configuration that uses them.

use std::{path::PathBuf, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::{CryptoProvider, aws_lc_rs},
};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use straightway_core::{Error, ErrorKind, Result};

/// The source of the trusted certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Roots {
    /// The certificates of the system. `SSL_CERT_FILE` and `SSL_CERT_DIR` replace them, as with OpenSSL.
    #[default]
    System,
    /// Only the certificates in this PEM file.
    File(PathBuf),
}

/// The trusted certificates, the crypto provider, and the configuration of connections.
#[derive(Debug)]
pub(crate) struct Tls {
    pub(crate) certificates: Vec<CertificateDer<'static>>,
    pub(crate) provider: Arc<CryptoProvider>,
    pub(crate) config: Arc<ClientConfig>,
}

impl Tls {
    /// Loads the certificates, which takes milliseconds.
    pub(crate) fn new(roots: &Roots) -> Result<Self> {
        let certificates = match roots {
            Roots::System => system()?,
            Roots::File(path) => {
                let refuse = |why: String| {
                    Error::new(ErrorKind::Invalid, "read certificates from", path.display(), why)
                        .with_hint("name a file with certificates in PEM form")
                };
                let read = CertificateDer::pem_file_iter(path).map_err(|e| refuse(e.to_string()))?;
                let read: Result<Vec<_>, _> = read.collect();
                let read = read.map_err(|e| refuse(e.to_string()))?;
                if read.is_empty() {
                    return Err(refuse("it has no certificates".to_owned()));
                }
                read
            }
        };
        let mut store = RootCertStore::empty();
        // Some systems have certificates that cannot be parsed; they are ignored.
        let (used, _) = store.add_parsable_certificates(certificates.iter().cloned());
        if used == 0 {
            return Err(no_roots("none of the certificates can be used"));
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("the provider has suites for the default versions");
        let mut config = config.with_root_certificates(store).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            certificates,
            provider,
            config: Arc::new(config),
        })
    }
}

/// The TLS configuration with these trusted certificates: for comparisons with other clients.
pub fn tls_config(roots: &Roots) -> Result<Arc<ClientConfig>> {
    Ok(Tls::new(roots)?.config)
}

fn system() -> Result<Vec<CertificateDer<'static>>> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        let why = found.errors.first().map(ToString::to_string);
        return Err(no_roots(&why.unwrap_or_else(|| "there are none".to_owned())));
    }
    Ok(found.certs)
}

fn no_roots(why: &str) -> Error {
    Error::new(ErrorKind::Unsupported, "find", "trusted certificates", why)
        .with_hint("install the package `ca-certificates`, or name a file of certificates")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_certificates_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("empty.pem");
        std::fs::write(&path, "no certificates here\n").unwrap();
        for path in [path, folder.path().join("missing.pem")] {
            let error = Tls::new(&Roots::File(path)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(".pem"), "{error}");
        }
    }
}
