# docs/cookbook/train-validation.md: filters=[("day", "<", first_day_of_validation)]
from datetime import date

from torch_dataloader_utils import stream

first_day_of_validation = date(2024, 1, 25)
training = stream("data/", filters=[("day", "<", first_day_of_validation)], shuffle=True, count_rows=True)
validation = stream("data/", filters=[("day", ">=", first_day_of_validation)])
train_ids = [row for batch in training for row in batch["id"].tolist()]
validation_ids = [row for batch in validation for row in batch["id"].tolist()]
