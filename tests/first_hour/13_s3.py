# docs/stores.md: aws_access_key_id
import os

from torch_dataloader_utils import stream

loader = stream(
    "s3://training-data/first-hour/",
    storage_options={
        "aws_access_key_id": "anybody",
        "aws_secret_access_key": "anything",
        "region_name": "us-east-1",
        "endpoint_url": os.environ["S3_SERVER"],
    },
)
ids = [row for batch in loader for row in batch["id"].tolist()]
