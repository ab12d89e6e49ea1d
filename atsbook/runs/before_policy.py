"""What an attack on images behind a policy tells of the images before it."""

import pandas as pd
import torch
from torch import Tensor

from atsbook.experiment import AttackRequest, knowledge_of_draw
from atsbook.packing import PICTURES, as_kept
from atsbook.runs.tables import policy_image
from atsbook.store import Artifact
from atslib.attacks.through_policy import drawn as forms_of
from atslib.clients.prepare import to_images
from atslib.measures.guesses import psnr_of_guess
from atslib.measures.metrics import psnr
from atslib.policies.differentiable import in_frame


def against_before(table: pd.DataFrame, request: AttackRequest) -> pd.DataFrame:
    """The rows of one request with `gain_before`: dB above the mean image, against the image before
    the policy.
    """
    images = to_images(request.clients().cropped)
    floor = psnr_of_guess(policy_image(request.model.dataset, "", request.crop_flip), images)
    own = table["psnr_before" if request.crop_flip else "psnr"]
    return table.assign(gain_before=own - floor.double().numpy())


def visible(request: AttackRequest) -> Tensor:
    """Which pixels of the request's images before the policy are left in the frame of the first round,
    (B, H, W) bool.
    """
    clients = request.clients()
    forms = forms_of(knowledge_of_draw(clients.draws[0]))[0]
    return in_frame(forms, to_images(clients.cropped))


def visible_rows(request: AttackRequest, artifact: Artifact) -> pd.DataFrame:
    """Of the pictures that the archive keeps, one row per image: what the attack finds before the
    policy, in dB.

    `share` of the image before the policy that is left in the frame, `psnr` on that part, and
    `whole` on all; `ceiling` is that of a perfect picture of what the client used, on all.
    """
    made = to_images(as_kept(artifact["reconstruction"][:PICTURES]))
    clients = request.clients()
    images, target = (to_images(part[: len(made)]) for part in (clients.cropped, clients.used()))
    part = visible(request)[: len(made)]
    share = part.double().mean((1, 2))
    # With the rest as it should be, the error of the whole is that of the part times its share.
    on_it = psnr(torch.where(part[:, None], made, images), images).double() + 10 * share.log10()
    values = {
        "psnr": on_it,
        "whole": psnr(made, images),
        "ceiling": psnr(target, images),
        "share": share,
    }
    return pd.DataFrame(
        {"image": range(len(made))} | {name: v.double().numpy() for name, v in values.items()}
    )
