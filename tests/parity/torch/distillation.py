"""The tutorial of knowledge distillation: soft targets of a teacher in evaluation mode."""

import torch
from shared import image_schema, images, loop
from torch import nn
from torch.nn import functional

GROUP = "Losses"

data_schema, input_fn = image_schema, images
T = 2.0
soft_target_loss_weight, ce_loss_weight = 0.25, 0.75
ce_loss = nn.CrossEntropyLoss()
kl_loss = nn.KLDivLoss(reduction="batchmean")


class DeepNN(nn.Module):
    def __init__(self, num_classes=3):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(2, 8, kernel_size=3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Linear(128, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, num_classes)
        )

    def forward(self, x):
        return self.classifier(torch.flatten(self.features(x), 1))


class LightNN(nn.Module):
    def __init__(self, num_classes=3):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(2, 4, kernel_size=3, padding=1), nn.ReLU())
        self.classifier = nn.Linear(256, num_classes)

    def forward(self, x):
        return self.classifier(torch.flatten(self.features(x), 1))


class Distilled(nn.Module):
    """A student, and the teacher beside it."""

    def __init__(self, teacher, student):
        super().__init__()
        self.teacher, self.student = teacher, student
        self.teacher.requires_grad_(False)

    def train(self, mode=True):
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, x):
        with torch.no_grad():
            teacher_logits = self.teacher(x)
        return self.student(x), teacher_logits


def loss(outputs, labels):
    student_logits, teacher_logits = outputs
    soft_targets = functional.softmax(teacher_logits / T, dim=-1)
    soft_prob = functional.log_softmax(student_logits / T, dim=-1)
    soft_targets_loss = kl_loss(soft_prob, soft_targets) * T**2
    label_loss = ce_loss(student_logits, labels)
    return soft_target_loss_weight * soft_targets_loss + ce_loss_weight * label_loss


def custom_model():
    teacher = DeepNN()
    nn.init.uniform_(teacher.features[1].running_mean, -0.2, 0.2)
    return Distilled(teacher, LightNN())


def optimizer(model):
    return torch.optim.Adam(model.student.parameters(), lr=0.001)


def eval_metrics_fn(predictions, labels):
    student_logits, _ = predictions
    return {"metric": (student_logits.argmax(1) == labels).float()}


def plain(data):
    model = custom_model()
    return loop(
        data,
        model,
        optimizer(model),
        loss,
        input_fn,
        metric=lambda outputs, labels: (outputs[0].argmax(1) == labels).float().mean(),
    )
