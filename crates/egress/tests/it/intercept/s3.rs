//! Signatures that other people's code makes and checks: boto3 against moto, which checks them where it is told to, and against
//! s3s-fs, which checks those of chunks too.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use http::StatusCode;
use testkit::S3Server;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::house::{House, request};

/// The name that programs may have without a name server.
const HOST: &str = "localhost";
const RULE: &str = r#"aws = { access_key = "env:ACCESS", secret_key = "env:KEY", regions = ["eu-central-1"], services = ["s3", "dynamodb"] }"#;

/// Makes a user of moto's and prints their keys. From then on it checks signatures.
const MAKE_USER: &str = r#"
import boto3, json, sys
iam = boto3.client("iam", endpoint_url=sys.argv[1], region_name="eu-central-1", aws_access_key_id="a", aws_secret_access_key="b")
iam.create_user(UserName="agent")
every = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
iam.put_user_policy(UserName="agent", PolicyName="all", PolicyDocument=json.dumps(every))
key = iam.create_access_key(UserName="agent")["AccessKey"]
print(key["AccessKeyId"], key["SecretAccessKey"])
"#;

/// What a program does in a sandbox, with keys that do not exist.
const USE_IT: &str = r#"
import boto3, io, sys
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
keys = dict(region_name="eu-central-1", aws_access_key_id="credential-brokered", aws_secret_access_key="credential-brokered",
            endpoint_url=sys.argv[1])
s3 = boto3.client("s3", config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}), **keys)
s3.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
odd = sys.argv[2]
whole, long = b"whole" * 100, bytes(range(256)) * 65536
s3.put_object(Bucket="bucket", Key="whole", Body=whole, ContentType="text/plain", Metadata={"a": "b  c"})
s3.put_object(Bucket="bucket", Key=odd, Body=io.BytesIO(whole))
for algorithm in ["CRC32", "SHA256"]:
    s3.put_object(Bucket="bucket", Key=algorithm, Body=io.BytesIO(long[:300_000]), ChecksumAlgorithm=algorithm)
s3.upload_fileobj(io.BytesIO(long), "bucket", "parts", Config=TransferConfig(multipart_chunksize=5 << 20, max_concurrency=2))
s3.copy_object(Bucket="bucket", Key="copy", CopySource={"Bucket": "bucket", "Key": "whole"})
read = lambda key: s3.get_object(Bucket="bucket", Key=key)["Body"].read()
assert read("whole") == read("copy") == read(odd) == whole
assert read("CRC32") == read("SHA256") == long[:300_000]
assert read("parts") == long
assert s3.head_object(Bucket="bucket", Key="whole")["Metadata"] == {"a": "b  c"}
listed = s3.list_objects_v2(Bucket="bucket", Prefix=odd[:3], MaxKeys=3)
assert listed["KeyCount"] == 1, listed
s3.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": "copy"}, {"Key": "CRC32"}]})
assert s3.list_objects_v2(Bucket="bucket")["KeyCount"] == 4
if "dynamodb" not in sys.argv[3:]:
    sys.exit(print("done"))
dynamo = boto3.client("dynamodb", **keys)
dynamo.create_table(TableName="t", KeySchema=[{"AttributeName": "k", "KeyType": "HASH"}],
                    AttributeDefinitions=[{"AttributeName": "k", "AttributeType": "S"}], BillingMode="PAY_PER_REQUEST")
dynamo.put_item(TableName="t", Item={"k": {"S": "\u00fc"}})
assert dynamo.get_item(TableName="t", Key={"k": {"S": "\u00fc"}})["Item"] == {"k": {"S": "\u00fc"}}
print("done")
"#;

/// A Python that knows moto and boto3.
fn python() -> PathBuf {
    let own = PathBuf::from("/opt/belljar-tests/moto/bin/python");
    if own.exists() { own } else { "python3".into() }
}

/// Runs a script that trusts this authority, as the runtime of a sandbox tells it to.
fn run(script: &str, authority: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(python());
    command.args(["-c", script]).args(arguments);
    command.env("REQUESTS_CA_BUNDLE", authority);
    for name in [
        "HTTPS_PROXY",
        "https_proxy",
        "HTTP_PROXY",
        "http_proxy",
        "AWS_CA_BUNDLE",
    ] {
        command.env_remove(name);
    }
    let output = command.output().unwrap();
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).unwrap())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

impl House {
    /// Puts a server that speaks no TLS behind one that does nothing else.
    async fn behind_tls(&self, port: u16) {
        let mut config = self.theirs.server(HOST, |_| {});
        config.alpn_protocols.clear();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        self.place(HOST, listener.local_addr().unwrap());
        let tasks = self.tasks.clone();
        self.tasks.spawn_until_stopped(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tasks.spawn_until_stopped(async move {
                    let mut inside = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                    // However either ends.
                    if let Ok(mut stream) = acceptor.accept(stream).await {
                        let _ = tokio::io::copy_bidirectional(&mut stream, &mut inside).await;
                    }
                });
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threat_048_boto3_works_with_keys_that_do_not_exist_and_what_is_signed_anew_is_believed() {
    let moto = S3Server::moto_that_checks_after(3);
    let made = run(MAKE_USER, moto.folder(), &[&moto.url()]).unwrap();
    let (access, key) = made.trim().split_once(' ').unwrap();
    let house = House::new(&[("aws", RULE)]);
    house.secrets.set("env:ACCESS", access);
    house.behind_tls(moto.port()).await;
    let authority = moto.folder().join("ca.pem");
    std::fs::write(&authority, house.ours.pem()).unwrap();
    let endpoint = format!("https://{HOST}:{}", house.gate(HOST).await);
    // Of keys with other letters moto reckons another signature than boto3, without anybody between them.
    let arguments = [endpoint.as_str(), "a-key/plain", "dynamodb"];
    // Moto does check.
    house.secrets.set("env:KEY", "another-secret-key-that-is-not-the-users");
    let refused = run(USE_IT, &authority, &arguments).unwrap_err();
    assert!(refused.contains("SignatureDoesNotMatch"), "{refused}");
    house.secrets.set("env:KEY", key);
    assert_eq!(run(USE_IT, &authority, &arguments).unwrap(), "done\n");
}

/// A body as SDKs write it, signed with keys that do not exist.
fn chunked(chunks: &[&str], trailer: Option<&str>) -> String {
    let none = "0".repeat(64);
    let mut body: String = chunks
        .iter()
        .map(|chunk| format!("{:x};chunk-signature={none}\r\n{chunk}\r\n", chunk.len()))
        .collect();
    body.push_str(&format!("0;chunk-signature={none}\r\n"));
    if let Some(trailer) = trailer {
        body.push_str(&format!("{trailer}\r\nx-amz-trailer-signature:{none}\r\n"));
    }
    body + "\r\n"
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threat_048_another_implementation_believes_each_chunk_that_is_signed_anew() {
    let s3s = S3Server::s3s();
    let house = House::new(&[("aws", RULE)]);
    house.secrets.set("env:ACCESS", S3Server::ACCESS_KEY);
    house.secrets.set("env:KEY", S3Server::SECRET_KEY);
    house.behind_tls(s3s.port()).await;
    let authorization = "AWS4-HMAC-SHA256 Credential=credential-brokered/20260102/eu-central-1/s3/aws4_request, SignedHeaders=host, Signature=00ff";
    let (long, longer) = ("a".repeat(64 << 10), "b".repeat(100_000));
    let chunks = [long.as_str(), longer.as_str(), "end"];
    let length = chunks.concat().len().to_string();
    for (key, payload, trailer) in [
        ("plain", signing::STREAMING, None),
        (
            "trailing",
            signing::STREAMING_TRAILER,
            Some("x-amz-checksum-crc32c:HRkBFw=="),
        ),
    ] {
        let mut signed = vec![
            ("authorization", authorization),
            ("content-encoding", "aws-chunked"),
            ("x-amz-content-sha256", payload),
            ("x-amz-decoded-content-length", length.as_str()),
        ];
        if trailer.is_some() {
            signed.push(("x-amz-trailer", "x-amz-checksum-crc32c"));
        }
        let body = chunked(&chunks, trailer);
        let reply = house
            .ask(
                HOST,
                request("PUT", HOST, &format!("/{}/{key}", S3Server::BUCKET), &signed, &body),
            )
            .await;
        assert_eq!(reply.status, StatusCode::OK, "{key}: {}", reply.body);
        let kept = std::fs::read_to_string(s3s.folder().join(S3Server::BUCKET).join(key)).unwrap();
        assert!(kept == chunks.concat(), "{key}");
    }
    // Keys of objects with letters that are escaped.
    let authority = s3s.folder().join("ca.pem");
    std::fs::write(&authority, house.ours.pem()).unwrap();
    let endpoint = format!("https://{HOST}:{}", house.gate(HOST).await);
    let arguments = [endpoint.as_str(), "a key/\u{fc}+~(e)'%2F"];
    assert_eq!(run(USE_IT, &authority, &arguments).unwrap(), "done\n");
}
